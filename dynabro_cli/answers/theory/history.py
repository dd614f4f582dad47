"""Measurement of how long one gradient influences a method's updates: the window sizes of the
paper's Table 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dynabro_cli.components.attacks._api import memoryless
from dynabro_cli.components.methods._api import GatheringMethod, JudgingMethod, Plan, senders
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.build import rule_setting
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec, fields
from dynabro_cli.simulation.round.parts import Parts, Question
from dynabro_cli.simulation.round.server import make_server

MOST_ROUNDS = 2000
DISTURBANCE = 1e4
"""Length, in units of V, of the vector that is added to one gradient of one worker."""
TOLERANCE = 1e-3
"""Share of the largest change above which a change of g_t counts."""


class Window(NamedTuple):
    """A method's history window.

    Attributes:
        rounds: Number of rounds from the disturbed round to the last round that it changes, both
            included.
        ended: True if the window ended before the measurement.
        filters: True if the method filters workers by their history; otherwise it aggregates all
            messages.
    """

    rounds: int
    ended: bool
    filters: bool


def history_window(run: Run, rounds: int = MOST_ROUNDS, noise_bound: float | None = None) -> Window:
    """Measure how long one gradient of one worker influences g_t.

    The method runs twice, in the plane and along the same path, without attack. A worker's gradient
    is x_t plus noise of length V. In one of the two runs, a vector of length 10,000 V is added to
    the first worker's first gradient in the first round, where windows begin. It points away from
    that gradient's noise, so that any median changes. The window counts the rounds up to the last
    round in which g_t differs by more than a thousandth of the largest difference.

    The path is the same, so this measures the memory of workers and server, not of the model. The
    run's aggregator is used, with its memory. While the aggregator treats a worker's momentum as an
    outlier, it bounds the change without ending it. So a window grows with the logarithm of the
    added length.

    Args:
        run: The run; its task and its attack do not matter.
        rounds: The largest number of rounds to follow, from 1.
        noise_bound: V, if the run has measured it.

    Example:
        >>> history_window(resolve(RunSpec(method="sgd")))
        Window(rounds=1, ended=True, filters=False)
    """
    method, aggregator = run.assemble(noise_bound or 1.0)
    spec = dataclasses.replace(run.spec, attack="none", attack_entry="gradient")
    nobody = memoryless(lambda state, _: state)
    parts = Parts(
        spec,
        None,  # type: ignore[arg-type]
        method,
        aggregator,
        nobody,
        None,  # type: ignore[arg-type]
        Streams(spec.seed),
        cohort=run.cohort_rule(method),
    )
    noise = method.noise_bound or 1.0
    plain, disturbed = _Course(parts, noise, 0.0), _Course(parts, noise, DISTURBANCE * noise)
    changes: list[float] = []
    ended = False
    while len(changes) < rounds and not ended:
        with torch.no_grad():
            changes.append(float((plain.step() - disturbed.step()).norm().nan_to_num(nan=math.inf)))
        ended = plain.like(disturbed, 0.01 * TOLERANCE * max(changes))
    last = max(
        (t for t, change in enumerate(changes) if change > TOLERANCE * max(changes)), default=0
    )
    return Window(last + 1, ended, isinstance(method, JudgingMethod))


def window_of(row: Mapping[str, Any], most: int = MOST_ROUNDS) -> Window:
    """Return the history window of a stored run, measured over its rounds, at most ``most``.

    Args:
        row: Its columns of the table ``runs``.
        most: The largest number of rounds.

    Raises:
        SpecError: This version does not have a component.
    """
    given = {name: _plain(row[name], info.type) for name, info in fields().items() if name in row}
    bound = _plain(row.get("noise_bound"), float)
    return history_window(
        resolve(RunSpec.from_mapping(given)), max(1, min(most, int(row["rounds"]))), bound
    )


def _plain(value: Any, kind: type) -> Any:
    """Return a value from a table as a spec stores it: None for NaN."""
    return None if value is None or value != value else kind(value)


class _Course:
    """A method's rounds along a path that does not depend on its updates; in the first round, one
    gradient can be moved.
    """

    def __init__(self, parts: Parts, noise: float, disturbance: float) -> None:
        self._parts, self._noise, self._disturbance = parts, noise, disturbance
        self._server = make_server(parts)
        # the workers whose messages are aggregated in a round
        self._workers = rule_setting(parts.spec, parts.method).workers
        self._nobody = torch.zeros(self._workers, dtype=torch.bool)
        self._round = 0
        self._spread: Tensor | None = None
        self._states: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        self.x = torch.zeros(2, dtype=torch.float64)

    def step(self) -> Tensor:
        """Return g_t of the next round."""
        method, t = self._parts.method, self._round
        self.x = 3 * 0.99**t * torch.tensor([1.0, -1.0], dtype=torch.float64)
        plan = method.plan_of(t, self._parts.streams.generator("level", t))
        if isinstance(method, GatheringMethod):
            gathered = method.gather(self, plan, self._states[0])
            self._states = gathered.state, self._states[1]
            aggregates = [self._aggregate(gathered.vectors, None, plan)]
        else:
            drawn = [self.gradients(computation) for computation in range(plan.prefixes[-1])]
            sums = torch.stack(drawn).cumsum(0)
            aggregates = [
                self._aggregate(sums[prefix - 1], self.x.new_tensor(prefix), plan, first=not place)
                for place, prefix in enumerate(plan.prefixes)
            ]
        self._round += 1
        return senders(method).direction(aggregates, plan, self._spread)[0]

    def _aggregate(
        self, total: Tensor, batches: Tensor | None, plan: Plan, *, first: bool = False
    ) -> Tensor:
        cohort = None if plan.cohort is None else torch.tensor(plan.cohort)
        nobody = self._nobody
        question = Question(
            total, None, batches, nobody, nobody, False, False, x=self.x, cohort=cohort, first=first
        )
        answer = self._server.answer(question, {}, *self._states)
        self._spread = answer.spread if first else self._spread
        self._states = answer.method, answer.aggregator
        return answer.aggregate

    def like(self, other: _Course, tolerance: float) -> bool:
        """Return True if both have the same memory, up to ``tolerance`` in every number."""
        return all(
            _alike(mine, theirs, tolerance)
            for mine, theirs in zip(self._states, other._states, strict=True)
        )

    def gradients(self, computation: int, points: Tensor | None = None) -> Tensor:
        """Return mini-batch gradients of all workers, as ``methods._api.Computing`` defines
        them.
        """
        draws = self._parts.streams.generator("noise", self._round, computation).standard_normal(
            (self._workers, 2)
        )
        noise = torch.from_numpy(draws)
        noisy: Tensor = (self.x if points is None else points) + self._noise * noise / noise.norm(
            dim=1, keepdim=True
        )
        if self._round == computation == 0 and points is None:
            noisy[0] -= self._disturbance * noise[0].sign() / math.sqrt(2)
        return noisy

    def large(self, batches: int) -> Tensor:
        """Return the mean of ``batches`` mini-batch gradients of each worker."""
        return torch.stack([self.gradients(computation) for computation in range(batches)]).mean(0)

    def attacked(self, gradients: Tensor, _: int) -> Tensor:
        """Return the gradients unchanged: nobody attacks."""
        return gradients


def _alike(state: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float) -> bool:
    if state.keys() != other.keys():
        return False
    exact = {name for name, value in state.items() if not value.is_floating_point()}
    return all(
        torch.equal(value, other[name])
        if name in exact
        else bool((value - other[name]).abs().max() <= tolerance)
        for name, value in state.items()
    )
