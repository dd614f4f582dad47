"""Inputs of a round: what the host draws and decides before the device computes."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from torch import Tensor

from dynabro_cli.components.methods._api import GatheringMethod, Plan
from dynabro_cli.simulation.problem.interface import Draws
from dynabro_cli.simulation.round.identities import Drawn, Identities
from dynabro_cli.simulation.round.parts import Parts, State


class Inputs(NamedTuple):
    """Everything that one round does not have in common with the next, besides the states.

    Tensors are the round's numbers; all else is the round's form.

    Attributes:
        plan: The round's plan.
        who: The Byzantine workers.
        rate: The learning rate, a tensor of one number in double precision.
        judged: True to measure the aggregate's distance from the honest mean.
        probed: True to measure the acceptance ratio.
        attacked: True if the attack acts on each computation of the round.
        draws: The workers' draws for the new computations of each prefix.
        server: The server's draws for the same computations; empty if the rule does not need them.
        seen: The server's draws for each computation, for an attack that sees the defence; empty
            unless ``attacked``.
    """

    plan: Plan
    who: Identities
    rate: Tensor
    judged: bool
    probed: bool
    attacked: bool
    draws: tuple[Draws, ...]
    server: tuple[Draws, ...]
    seen: tuple[Draws, ...]


def draws_of(
    parts: Parts, state: State, plan: Plan, drawn: Drawn, *, attacked: bool
) -> tuple[tuple[Draws, ...], tuple[Draws, ...], tuple[Draws, ...]]:
    """Return ``draws``, ``server`` and ``seen`` of ``Inputs``; a method that gathers its vectors
    draws itself.
    """
    if isinstance(parts.method, GatheringMethod):
        return (), (), ()
    draw, round_, by_server = parts.problem.draw, state.round, parts.aggregator.needs_server
    draws: list[Draws] = []
    server: list[Draws] = []
    seen: list[Draws] = []
    for start, prefix in itertools.pairwise((0, *plan.prefixes)):
        numbers = range(start, prefix)
        if attacked:
            ticks = [min(number, len(drawn.computed) - 1) for number in numbers]
            each = [
                draw(round_, (number,), drawn.computed[tick])
                for number, tick in zip(numbers, ticks, strict=True)
            ]
            draws.append(tuple(itertools.chain.from_iterable(each)))
        else:
            draws.append(draw(round_, numbers, drawn.computed[-1]))
        if by_server:
            server.append(draw(round_, numbers, None))
        if by_server and attacked and parts.attack.sees_defence:
            seen += [draw(round_, (number,), None) for number in numbers]
    return tuple(draws), tuple(server), tuple(seen)
