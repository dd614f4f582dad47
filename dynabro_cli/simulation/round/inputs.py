"""Inputs of a round: what the host draws and decides before the device computes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from dynabro_cli.methods._api import GatheringMethod, Plan
from dynabro_cli.simulation.problem.interface import Draws
from dynabro_cli.simulation.round.identities import Drawn, Identities
from dynabro_cli.simulation.round.parts import Parts, State


class Inputs(NamedTuple):
    """Everything that one round does not have in common with the next, besides the states.

    Tensors are the round's numbers; all else is the round's form. Draws are iterators, which draw
    when they are read, unless all of them are ``at_hand``.

    Attributes:
        plan: The round's plan.
        who: The Byzantine workers.
        rate: The learning rate, a tensor of one number in double precision.
        row: The place of the round's numbers among the records, a mask.
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
    row: Tensor
    judged: bool
    probed: bool
    attacked: bool
    draws: tuple[Draws, ...] = ()
    server: tuple[Draws, ...] = ()
    seen: tuple[Draws, ...] = ()


def with_draws(inputs: Inputs, parts: Parts, state: State, drawn: Drawn) -> Inputs:
    """Return the inputs with the draws of the round's computations; a method that gathers its
    vectors draws itself.
    """
    if isinstance(parts.method, GatheringMethod):
        return inputs
    problem, round_, by_server = parts.problem, state.round, parts.aggregator.needs_server
    steps = [range(*pair) for pair in itertools.pairwise((0, *inputs.plan.prefixes))]

    def single(computations: Sequence[int]) -> Draws:
        return itertools.chain.from_iterable(
            problem.draw(round_, (number,), drawn.computed[number]) for number in computations
        )

    return inputs._replace(
        draws=tuple(
            single(step) if inputs.attacked else problem.draw(round_, step, drawn.computed[-1])
            for step in steps
        ),
        server=tuple(problem.draw(round_, step, None) for step in steps) if by_server else (),
        seen=tuple(
            problem.draw(round_, (number,), None) for number in range(inputs.plan.prefixes[-1])
        )
        if by_server and inputs.attacked and parts.attack.sees_defence
        else (),
    )


def at_hand(inputs: Inputs) -> Inputs:
    """Return the inputs with all numbers drawn."""
    draws, server, seen = (
        tuple(tuple(some) for some in every) for every in (inputs.draws, inputs.server, inputs.seen)
    )
    return inputs._replace(draws=draws, server=server, seen=seen)
