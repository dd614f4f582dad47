"""Gradients at other points than x_t, and of more than a mini-batch, for the methods that gather their vectors themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from dynabro_cli.methods._api import Plan
from dynabro_cli.simulation.identities import Identities
from dynabro_cli.simulation.memory import send
from dynabro_cli.simulation.parts import Parts, State
from dynabro_cli.simulation.server import Question


def gather(parts: Parts, state: State, plan: Plan, who: Identities) -> Question:
    """Have the method gather the workers' vectors of a round, and put its next state into ``state``.

    Who is Byzantine at the round's last computation is whose vector is attacked, unless its gradients have been.
    """
    if parts.method.gather is None:
        raise TypeError("this method gathers nothing")
    gathered = parts.method.gather(Round(parts, state, who), plan, state.method)
    state.method = gathered.state
    return Question(
        total=gathered.vectors,
        places=None,
        batches=None,
        byzantine=who.ticks[-1].byzantine,
        ever=who.ever,
        attacked=gathered.attacked and parts.spec.attack_entry == "gradient",
        judged=bool(who.honest[list(plan.cohort or range(len(who.honest)))].any()),
        cohort=None if plan.cohort is None else send(torch.tensor(plan.cohort), parts.problem.x.device),
    )


def advance(parts: Parts, state: State, question: Question, who: Identities) -> None:
    """Move the attack on, unless it has moved with each computation."""
    if not (question.attacked and who.dynamic):
        state.attack = parts.attack.advance(question.byzantine, state.attack)


class Round:
    """What a method may ask of a round: ``methods._api.Computing``.

    All workers' gradients are computed, whatever the attack reads of them. At points of the workers' own that is one pass a
    worker, and not one of all.
    """

    def __init__(self, parts: Parts, state: State, who: Identities) -> None:
        self._parts, self._state, self._who = parts, state, who
        self._workers = torch.arange(parts.spec.workers or 0)
        self.x = parts.problem.x

    def gradients(self, computation: int, points: Tensor | None = None) -> Tensor:
        problem, number = self._parts.problem, self._state.round
        if points is None:
            return problem.sum_gradients(number, (computation,), self._workers, None).clone()
        here = self.x.clone()
        if points.ndim == 1:
            self.x.copy_(points)
            found = problem.sum_gradients(number, (computation,), self._workers, None).clone()
            problem.observed()  # losses and statistics of a round are those at x_t
        else:
            found = torch.empty_like(points)
            for worker, point in enumerate(points):
                self.x.copy_(point)
                found[worker] = problem.sum_gradients(number, (computation,), self._workers[worker : worker + 1], None)[0]
        self.x.copy_(here)
        return found

    def large(self, batches: int) -> Tensor:
        return self._parts.problem.large_gradients(self._state.round, batches)

    def attacked(self, gradients: Tensor, computation: int) -> Tensor:
        if self._parts.spec.attack_entry != "gradient":
            return gradients
        attack, state, who = self._parts.attack, self._state, self._who
        byzantine = who.ticks[min(computation, len(who.ticks) - 1)].byzantine
        vectors = attack.messages(gradients, byzantine, state.attack)
        if who.dynamic:
            state.attack = attack.advance(byzantine, state.attack)
        return vectors
