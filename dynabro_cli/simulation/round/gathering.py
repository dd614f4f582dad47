"""Gradients at points other than x_t, and over more than one mini-batch, for methods that gather
their vectors themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dynabro_cli.components.attacks._api import BEFORE_MEMORY
from dynabro_cli.components.methods._api import GatheringMethod
from dynabro_cli.gradients.memory import send
from dynabro_cli.simulation.problem.interface import Relabel, forget
from dynabro_cli.simulation.round.attacker import Attacker, attack_computation, learn
from dynabro_cli.simulation.round.identities import relabelling
from dynabro_cli.simulation.round.inputs import Inputs
from dynabro_cli.simulation.round.parts import Parts, Question, State, server_gradient


def gather(
    parts: Parts, method: GatheringMethod, state: State, inputs: Inputs, attacker: Attacker
) -> Question:
    """Let the method gather the workers' vectors of a round, and put its next state into ``state``.

    The attack acts on the vectors of workers that are Byzantine at the round's last computation,
    unless it has already acted on their gradients.
    """
    plan, who = inputs.plan, inputs.who
    server = server_gradient(parts, state)
    gathered = method.gather(RoundGradients(parts, state, inputs, attacker), plan, state.method)
    state.method = gathered.state
    return Question(
        total=gathered.vectors,
        places=None,
        batches=None,
        byzantine=who.ticks[-1].byzantine,
        ever=who.ever,
        attacked=gathered.attacked and parts.spec.attack_entry in BEFORE_MEMORY,
        judged=inputs.judged,
        learned=parts.attack.observe is not None,
        cohort=None
        if plan.cohort is None
        else send(torch.tensor(plan.cohort), parts.problem.x.device),
        answering=who.answering,
        gradients=gathered.gradients,
        server=server,
    )


class RoundGradients:
    """Answers to a method's questions about a round: ``methods._api.Computing``.

    The gradients of all workers that answer are computed, whatever the attack reads. If the workers
    are at different points, this takes one pass per worker, not one pass for all.
    """

    def __init__(self, parts: Parts, state: State, inputs: Inputs, attacker: Attacker) -> None:
        self._parts, self._state, self._inputs, self._attacker = parts, state, inputs, attacker
        self._last = inputs.plan.prefixes[-1] - 1
        everyone = torch.arange(parts.spec.workers)
        self._workers = everyone if parts.answering is None else parts.answering(state.round)
        self._relabel = relabelling(parts.attack, inputs.who)
        self.x = parts.problem.x

    def gradients(self, computation: int, points: Tensor | None = None) -> Tensor:
        if points is None:
            return self._gradients(computation, self._workers, self._relabel).clone()
        here = self.x.clone()
        if points.ndim == 1:
            self.x.copy_(points)
            result = self._gradients(computation, self._workers, self._relabel).clone()
            forget(self._parts.problem)  # losses and statistics of a round are taken at x_t
        else:
            result = torch.empty_like(points)
            for worker, point in enumerate(points):
                self.x.copy_(point)
                relabel = (
                    None if self._relabel is None else of_worker(self._relabel, worker, len(points))
                )
                result[worker] = self._gradients(
                    computation, self._workers[worker : worker + 1], relabel
                )[0]
        self.x.copy_(here)
        return result

    def _gradients(self, computation: int, workers: Tensor, relabel: Relabel | None) -> Tensor:
        problem, round_ = self._parts.problem, self._state.round
        return problem.sum_gradients(round_, (computation,), workers, None, relabel)[: len(workers)]

    def large(self, batches: int) -> Tensor:
        return self._parts.problem.large_gradients(self._state.round, batches, self._relabel)

    def attacked(self, gradients: Tensor, computation: int) -> Tensor:
        if self._parts.spec.attack_entry not in BEFORE_MEMORY:
            return gradients
        parts, state, inputs = self._parts, self._state, self._inputs
        parts.draws.computation = computation
        who, each = inputs.who, inputs.attacked
        tick = who.tick(computation)
        seen = server_gradient(parts, state, computation) if parts.attack.sees_defence else None
        vectors = attack_computation(
            parts, state, self._attacker, gradients, tick, who.answering, seen, learns=each
        )
        if computation == self._last and not each:
            learn(parts, state, gradients, tick.byzantine)
        return vectors


def of_worker(relabel: Relabel, worker: int, workers: int) -> Relabel:
    """Return ``relabel`` for the labels [1, B] of one worker."""

    def alone(labels: Tensor, computation: int, classes: int) -> Tensor:
        return relabel(labels.expand(workers, -1), computation, classes)[worker : worker + 1]

    return alone
