"""Sums of the workers' gradients over the prefixes of a round's mini-batches, and the questions
about them to the server.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dynabro_cli.components.methods._api import JudgingMethod
from dynabro_cli.simulation.round.attacker import Attacker, attack_computation
from dynabro_cli.simulation.round.identities import relabelling
from dynabro_cli.simulation.round.inputs import Inputs
from dynabro_cli.simulation.round.parts import Parts, Question, State


class Prefixes:
    """The prefixes of one round after another: level j of MLMC has the first 2^j mini-batches.

    With ``attack_entry=gradient`` the attack acts on each prefix's message in a static round, with
    its honest statistics, and on each computation in a dynamic round, in which a worker is
    Byzantine for only some computations. With ``attack_entry=computation`` it acts on each
    computation in every round.

    Args:
        parts: The parts of the run.
        attacker: The attack as a function.
    """

    def __init__(self, parts: Parts, attacker: Attacker) -> None:
        self._parts, self._attacker = parts, attacker
        self._rows = parts.spec.workers if parts.answering is None else len(parts.answering(0))
        self._total = parts.problem.x.new_zeros(self._rows, parts.problem.x.numel())
        self._counts: dict[int, Tensor] = {}
        self._server = torch.zeros_like(parts.problem.x)

    def question(self, place: int, inputs: Inputs, state: State) -> Question:
        """Add the mini-batches of the prefix at this place of the plan to the sums; return the
        question about the sums.
        """
        parts, plan, who = self._parts, inputs.plan, inputs.who
        prefix, last = plan.prefixes[place], who.ticks[-1]
        ends = place == len(plan.prefixes) - 1
        # first: it may overwrite the buffer of the workers' gradients
        server = self._of_server(place, inputs)
        return Question(
            total=self._add(place, inputs, state),
            places=None if inputs.attacked else last.places,
            batches=None if plan.prefixes == (1,) else self._count(prefix),
            byzantine=last.byzantine,
            ever=who.ever,
            attacked=inputs.attacked,
            judged=ends and inputs.judged,
            learned=ends and parts.attack.observe is not None,
            x=parts.problem.x if isinstance(parts.method, JudgingMethod) else None,
            answering=who.answering,
            first=not place,
            server=server,
            everyone=who.everyone,
        )

    def _of_server(self, place: int, inputs: Inputs) -> Tensor | None:
        """Return the server's mean over the prefix at this place; None if the rule does not need
        it.
        """
        if not inputs.server:
            return None
        if not place:
            self._server.zero_()
        if inputs.server[place]:
            self._server += self._parts.problem.server_gradient(inputs.server[place])
        return self._server / inputs.plan.prefixes[place]

    def _add(self, place: int, inputs: Inputs, state: State) -> Tensor:
        """Return the sums after the computations of the prefix at this place; the first prefix
        begins new sums.
        """
        parts, total, draws, who = self._parts, self._total, inputs.draws[place], inputs.who
        relabel = relabelling(parts.attack, who)
        if inputs.attacked:
            self._add_attacked(place, inputs, state)
        elif inputs.plan.prefixes == (1,):  # no sums are needed
            gradients = parts.problem.gradients(draws, None, relabel)
            return gradients if parts.answering is None else gradients[: self._rows]
        elif draws:
            if not place:
                total[: who.ticks[-1].rows] = 0
            parts.problem.gradients(draws, total, relabel)
        return total

    def _add_attacked(self, place: int, inputs: Inputs, state: State) -> None:
        """Add the gradients of each computation, attacked with its Byzantine workers."""
        parts, who, problem = self._parts, inputs.who, self._parts.problem
        relabel = relabelling(parts.attack, who)
        if not place:
            self._total.zero_()
        first = inputs.plan.prefixes[place - 1] if place else 0
        for computation, drawn in enumerate(inputs.draws[place], first):
            parts.draws.computation = computation
            tick = who.tick(computation)
            seen = problem.server_gradient(inputs.seen[computation]) if inputs.seen else None
            gradients = problem.gradients((drawn,), None, relabel)
            gradients = (
                gradients[: self._rows]
                if tick.places is None
                else gradients.index_select(0, tick.places)
            )
            self._total += attack_computation(
                parts, state, self._attacker, gradients, tick, who.answering, seen, learns=True
            )

    def _count(self, prefix: int) -> Tensor:
        """Return ``prefix`` as a tensor on the device: a plain number would be compiled into the
        server's function.
        """
        if prefix not in self._counts:
            self._counts[prefix] = self._parts.problem.x.new_full((), prefix)
        return self._counts[prefix]
