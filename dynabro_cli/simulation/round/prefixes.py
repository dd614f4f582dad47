"""Sums of the workers' gradients over the prefixes of a round's mini-batches, and the questions
about them to the server.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dynabro_cli.gradients.memory import send_once
from dynabro_cli.methods._api import JudgingMethod, Plan, senders
from dynabro_cli.simulation.round.attacker import Attacker, attack_computation
from dynabro_cli.simulation.round.identities import Identities, relabelling
from dynabro_cli.simulation.round.parts import Parts, Question, State, server_gradient


class Prefixes:
    """The prefixes of one round after another: level j of MLMC has the first 2^j mini-batches.

    In a static round the attack acts on each prefix's message, with its honest statistics. In a
    dynamic round, in which a worker is Byzantine for only some computations, an attack on gradients
    acts on each computation.

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

    def attacked(self, who: Identities) -> bool:
        """Return True if the attack acts on each computation of the round."""
        return self._parts.spec.attack_entry == "gradient" and who.dynamic

    def question(self, place: int, plan: Plan, who: Identities, state: State) -> Question:
        """Add the mini-batches of the prefix at this place of the plan to the sums; return the
        question about the sums.
        """
        parts, attacked, last = self._parts, self.attacked(who), who.ticks[-1]
        prefix, done = plan.prefixes[place], plan.prefixes[place - 1] if place else 0
        ends = place == len(plan.prefixes) - 1
        # first: it may overwrite the buffer of the workers' gradients
        server = self._of_server(range(done, prefix), state)
        return Question(
            total=self._add(range(done, prefix), plan, who, state, attacked),
            places=None if attacked else last.places,
            batches=None if plan.prefixes == (1,) else self._count(prefix),
            byzantine=last.byzantine,
            ever=who.ever,
            attacked=attacked,
            judged=ends and who.any_honest,
            learned=ends and parts.attack.observe is not None,
            x=parts.problem.x if isinstance(parts.method, JudgingMethod) else None,
            answering=who.answering,
            first=not place,
            server=server,
            everyone=self._everyone(who),
        )

    def _of_server(self, computations: range, state: State) -> Tensor | None:
        """Return the server's mean over the prefix that ends with these computations; None if the
        rule does not need it.
        """
        if not self._parts.aggregator.needs_server:
            return None
        if not computations.start:
            self._server.zero_()
        if computations:
            self._server += self._parts.problem.server_gradient(state.round, computations)
        return self._server / computations.stop

    def _everyone(self, who: Identities) -> Tensor | None:
        """Return the mask of the round's Byzantine workers among all workers, if the method
        aggregates delayed messages.
        """
        if who.answering is None or not senders(self._parts.method).delayed:
            return None
        return send_once(torch.stack(who.drawn.masks).any(0), self._parts.problem.x.device)

    def _add(
        self, computations: range, plan: Plan, who: Identities, state: State, attacked: bool
    ) -> Tensor:
        """Return the sums after these computations; computation 0 begins new sums."""
        parts, total = self._parts, self._total
        relabel, computed = relabelling(parts.attack, who), who.ticks[-1].computed
        if attacked:
            self._add_attacked(who, computations, state)
        elif plan.prefixes == (1,):  # no sums are needed
            gradients = parts.problem.sum_gradients(state.round, (0,), computed, None, relabel)
            return gradients if parts.answering is None else gradients[: self._rows]
        elif computations:
            if not computations.start:
                total[: len(computed)] = 0
            parts.problem.sum_gradients(state.round, computations, computed, total, relabel)
        return total

    def _add_attacked(self, who: Identities, computations: range, state: State) -> None:
        """Add the gradients of each computation, attacked with its Byzantine workers."""
        parts, relabel = self._parts, relabelling(self._parts.attack, who)
        if not computations.start:
            self._total.zero_()
        for computation in computations:
            tick = who.ticks[computation]
            seen = server_gradient(parts, state, computation) if parts.attack.sees_defence else None
            gradients = parts.problem.sum_gradients(
                state.round, (computation,), tick.computed, None, relabel
            )
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
