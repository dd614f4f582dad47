"""The empirical kappa of a rule: a search for the input at which Definition 3.2 comes closest to
failing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynabro_cli.answers.theory._inputs import Matrix, made_by_hand, move, random_start
from dynabro_cli.answers.theory.subjects import Effort, Subject
from dynabro_cli.components.aggregators._api import Aggregator

ROUNDING = 1e-7
"""Distance that may be rounding, as a share of the largest number; it is subtracted from the error
and added to the spread.
"""
LARGE = 1e6
"""Ratio at which a search ends, because no bound is in sight; a hundred times the proved kappa, if
that is larger.
"""
SLACK = 1e-6


class Found(NamedTuple):
    """Result of a search.

    Attributes:
        rule: The rule's text, with its pre-aggregators.
        workers: m.
        byzantine: f.
        effort: The effort of the search.
        empirical: The largest ratio, a lower bound of the true kappa; at most ``LARGE``, or a
            hundred times the proved kappa.
        unbounded: True if it reached this limit.
        proved: The proved kappa; None if no kappa is proved.
        evaluations: Number of inputs tried.
        complete: True if the search was not cut short, so that it is the same on every machine.
        stateful: True if the rule has a state; its initial state was searched.
        worst: The input: [m, d], its first f rows Byzantine.
    """

    rule: str
    workers: int
    byzantine: int
    effort: Effort
    empirical: float
    unbounded: bool
    proved: float | None
    evaluations: int
    complete: bool
    stateful: bool
    worst: Matrix

    @property
    def row(self) -> dict[str, Any]:
        """The columns of the table ``verified_kappa``, except the version and the time."""
        searched = {
            name: getattr(self.effort, name) for name in ("dimension", "restarts", "steps", "seed")
        }
        names = (
            "rule",
            "workers",
            "byzantine",
            "empirical",
            "unbounded",
            "proved",
            "evaluations",
            "complete",
        )
        return (
            searched
            | {name: getattr(self, name) for name in names}
            | {"worst": self.worst.tolist()}
        )

    @property
    def notes(self) -> list[str]:
        """Notes on the result."""
        notes = {
            "no bound in sight": self.unbounded,
            "has a state: its initial one is searched": self.stateful,
            f"stopped after {self.effort.seconds:g} s": not self.complete,
        }
        return [note for note, holds in notes.items() if holds]

    @property
    def violated(self) -> bool:
        """True if the input disproves the proved kappa: a bug in the rule or in its bound."""
        return self.proved is not None and self.empirical > self.proved * (1 + SLACK) + SLACK


def ratio(rule: Aggregator, messages: Tensor, byzantine: int) -> Tensor:
    """Return |A - mean_S|^2 over (1/|S|) sum_{i in S} |g_i - mean_S|^2, with S all rows except the
    Byzantine ones.

    Rounding is subtracted from the numerator and added to the denominator, and so never makes the
    ratio too large. An honest set without spread gives 0 if the rule returns its value, and a large
    number otherwise. An aggregate with NaN is infinitely far.
    """
    aggregate, _ = rule.aggregate(messages, {}, 1)
    honest = messages[byzantine:]
    mean = honest.mean(0)
    noise = ROUNDING * messages.abs().max()
    spread = (honest - mean).square().sum(1).mean().sqrt()
    error = ((aggregate - mean).norm() - noise).clamp_min(0)
    ratios: Tensor = (error / (spread + noise).clamp_min(torch.finfo(messages.dtype).tiny)).square()
    return ratios.nan_to_num(nan=torch.inf)


class _Search:
    """The best input so far, and the remaining effort."""

    def __init__(self, subject: Subject, effort: Effort) -> None:
        self._subject, self._effort = subject, effort
        self._end = time.process_time() + effort.seconds
        self._large = max(LARGE, 100 * (subject.rule.kappa or 0))
        self.best = -1.0
        self.worst: Matrix = np.zeros((subject.workers, effort.dimension))
        self.evaluations = 0

    @property
    def unbounded(self) -> bool:
        return self.best >= self._large

    @property
    def late(self) -> bool:
        return time.process_time() > self._end

    @property
    def over(self) -> bool:
        return self.unbounded or self.late

    def value(self, messages: Matrix) -> float:
        """Return the ratio at an input, at most ``LARGE``."""
        self.evaluations += 1
        lowest = min(
            float(ratio(self._subject.rule, torch.from_numpy(messages), self._subject.byzantine)),
            self._large,
        )
        if lowest > self.best:
            self.best, self.worst = lowest, messages
        return lowest

    def climb(self, messages: Matrix, generator: np.random.Generator) -> None:
        """Climb from an input by random moves."""
        value = self.value(messages)
        for _ in range(self._effort.steps):
            if self.over:
                return
            moved = move(messages, self._subject.byzantine, generator)
            candidate = self.value(moved)
            if candidate >= value:
                messages, value = moved, candidate


def search(
    subject: Subject,
    effort: Effort,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Found:
    """Search for the largest ratio of Definition 3.2 of a rule.

    The result is a lower bound of the true kappa: the best of many climbs from hand-made and random
    inputs, in double precision. Rules depend on the order only in ties, so the last m - f rows
    stand for any honest set. Byzantine rows come first, because ties go to the lowest index.

    Args:
        subject: The rule.
        effort: The length of the search; the same effort gives the same result, unless ``seconds``
            end the search.
        progress: Called with the number of climbs done, and the number of all climbs.
    """
    generator = np.random.default_rng(effort.seed)
    shape = subject.workers, subject.byzantine, effort.dimension
    state = _Search(subject, effort)
    starts: list[tuple[float, Matrix]] = []
    for start in made_by_hand(*shape, generator):
        if state.over:
            break
        starts.append((state.value(start), start))
    starts.sort(key=lambda pair: -pair[0])
    for number in range(effort.restarts):
        if state.over:
            break
        progress(number, effort.restarts)
        by_hand = number % 2 == 0 and number // 2 < len(starts)
        start = starts[number // 2][1] if by_hand else random_start(*shape, generator)
        state.climb(start, generator)
    state_after = subject.rule.aggregate(torch.from_numpy(state.worst), {}, 1)[1]
    return Found(
        rule=subject.text,
        workers=subject.workers,
        byzantine=subject.byzantine,
        effort=effort,
        empirical=max(state.best, 0.0),
        unbounded=state.unbounded,
        proved=subject.rule.kappa,
        evaluations=state.evaluations,
        complete=state.unbounded or not state.late,
        stateful=bool(state_after),
        worst=state.worst,
    )
