"""Recovery from switches: computed from a run's stored rounds and evaluations when it ends, one row
of ``recovery`` per run.

A **switch** is a round at whose start, or within which, the Byzantine set changed
(``rounds.switched``). It is **seen** by the last evaluation before it, which has not met the new
set yet, and by the evaluations after it. Switches between the same two evaluations count as one,
with the first of them. **After** a switch means between it and the next switch that is seen, with
at least one evaluation.

- ``dip``: fall of the test accuracy after a switch: the accuracy of the evaluation before it minus
  the lowest one after it; 0 if it does not fall. The mean over the switches seen; ``largest_dip``
  is the largest.
- ``recovery_rounds``, ``recovery_budget``: from a switch to the first evaluation, after the fall,
  at which the accuracy is back at its value before the switch, up to ``TOLERANCE``: rounds, and
  gradient computations per worker. 0 if the accuracy fell by no more than that. It may take longer
  than to the next switch, and is as coarse as the evaluations. The median over the switches seen; a
  switch without recovery counts as infinite. NULL if the median is infinite.
- ``switches_seen``, ``recoveries``: number of switches seen, and number of them from which the run
  recovers.
- ``worst_window``: the lowest mean accuracy of ``WINDOW`` evaluations in a row, after the first
  fifth of the budget spent; of all evaluations if there are fewer.
- ``acceptance``: the mean of ``rounds.acceptance``, the acceptance ratio of Byzantine messages,
  over the rounds that have it.
- ``aggregation_error``: the mean of ``rounds.aggregation_error`` over the rounds that have it.
- ``reason``: why the first five numbers, or the numbers of the recovery, are NULL; NULL if none of
  them is. A diverged run has no numbers. A run that was thinned before it had this row has the
  worst window only.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, text

from dynabro_cli.runs.store.tables import HAS_RESULT, recovery

TOLERANCE = 0.01
"""Largest difference from the accuracy before a switch that counts as recovered; a smaller fall is
not a fall.
"""
WINDOW = 5
"""Evaluations per window."""
WARM_UP = 0.2
"""Share of the budget spent before the worst window: every run starts badly."""

DIVERGED, THINNED, NO_ACCURACY = "diverged", "thinned", "no accuracy"
NO_SWITCH, NOT_RECOVERED = "no switch", "most switches are not recovered from"

_RUN = f"SELECT status, rounds_every, budget_spent FROM runs WHERE {HAS_RESULT} AND id = :run"
_EVALUATIONS = """
    SELECT round, budget, test_accuracy FROM evaluations
    WHERE test_accuracy BETWEEN 0 AND 1 AND run_id = :run ORDER BY round
"""
_SWITCHES = (
    "SELECT round, budget - cost FROM rounds WHERE switched AND run_id = :run ORDER BY round"
)
_MEANS = """
    SELECT AVG(CASE WHEN ABS(acceptance) < 1e290 THEN acceptance END{order}),
           AVG(CASE WHEN ABS(aggregation_error) < 1e290 THEN aggregation_error END{order})
    FROM rounds WHERE run_id = :run
"""  # a server refuses a sum that is too large for a number type
_ORDER = {"postgresql": " ORDER BY round"}
"""Sums are rounded, and a server adds rows in any order; SQLite takes them from the index of
``rounds``, in order.
"""


class Point(NamedTuple):
    """An evaluation after ``round`` rounds and ``budget`` computations."""

    round: int
    budget: int
    accuracy: float


class Switch(NamedTuple):
    """A switch at the beginning of ``round``, after ``budget`` computations, or within it."""

    round: int
    budget: int


@dataclass(frozen=True)
class Episode:
    """One seen switch: the accuracy before it, the evaluations up to the next one, and all
    evaluations after it.
    """

    switch: Switch
    before: float
    after: Sequence[Point]
    behind: Sequence[Point]

    @property
    def dip(self) -> float:
        return max(0.0, self.before - min(point.accuracy for point in self.after))

    @property
    def recovery(self) -> tuple[float, float]:
        """Rounds and budget to recover; 0 without a fall, infinite without a recovery."""
        enough = self.before - TOLERANCE
        if all(point.accuracy >= enough for point in self.after):
            return 0.0, 0.0
        fallen = itertools.dropwhile(lambda point: point.accuracy >= enough, self.behind)
        back = next((point for point in fallen if point.accuracy >= enough), None)
        if back is None:
            return math.inf, math.inf
        return float(back.round - self.switch.round), float(back.budget - self.switch.budget)


def episodes(points: Sequence[Point], switches: Sequence[Switch]) -> list[Episode]:
    """Return the switches that the evaluations of a run see; both in order."""
    firsts: dict[int, Switch] = {}  # the evaluation before the switch
    place = -1
    for switch in switches:
        while place + 1 < len(points) and points[place + 1].round <= switch.round:
            place += 1
        if 0 <= place < len(points) - 1:
            firsts.setdefault(place, switch)
    ends = [*firsts, len(points) - 1][1:]
    return [
        Episode(switch, points[start].accuracy, points[start + 1 : end + 1], points[start + 1 :])
        for (start, switch), end in zip(firsts.items(), ends, strict=True)
    ]


def worst_window(points: Sequence[Point], spent: int) -> float | None:
    """Return the lowest mean accuracy of ``WINDOW`` evaluations in a row, after ``WARM_UP``; None
    if there are none.
    """
    late = [point.accuracy for point in points if point.budget > WARM_UP * spent]
    size = min(WINDOW, len(late))
    windows = [late[start : start + size] for start in range(len(late) - size + 1)] if late else []
    return min((statistics.fmean(window) for window in windows), default=None)


def measure(
    run: Mapping[str, Any],
    points: Sequence[Point],
    switches: Sequence[Switch],
    means: tuple[float | None, float | None],
) -> dict[str, Any]:
    """Return a run's row of ``recovery``, without ``run_id``.

    Args:
        run: The columns ``status``, ``rounds_every`` and ``budget_spent`` of a run that has ended
            with a result.
        points: Its evaluations that have an accuracy, in order.
        switches: In order.
        means: Means of the acceptance ratio and the aggregation error of its rounds.
    """
    numbers: dict[str, Any] = dict.fromkeys(recovery.c.keys()[1:]) | {
        "switches_seen": 0,
        "recoveries": 0,
    }
    if run["status"] == "diverged":
        return numbers | {"reason": DIVERGED}
    numbers["worst_window"] = worst_window(points, run["budget_spent"])
    if run["rounds_every"] != 1:
        return numbers | {"reason": THINNED}
    numbers["acceptance"], numbers["aggregation_error"] = means
    seen = episodes(points, switches)
    if not seen:
        return numbers | {"reason": NO_SWITCH if points else NO_ACCURACY}
    dips = [episode.dip for episode in seen]
    rounds, budgets = zip(*(episode.recovery for episode in seen), strict=True)
    numbers |= {
        "switches_seen": len(seen),
        "recoveries": sum(map(math.isfinite, rounds)),
        "dip": statistics.fmean(dips),
        "largest_dip": max(dips),
    }
    middle = statistics.median(rounds)
    if not math.isfinite(middle):
        return numbers | {"reason": NOT_RECOVERED}
    return numbers | {"recovery_rounds": middle, "recovery_budget": statistics.median(budgets)}


def measured(connection: Connection, run_id: int) -> dict[str, Any]:
    """Return the row of ``recovery`` that a run with a result should have, computed from its other
    rows.
    """
    order = _ORDER.get(connection.dialect.name, "")
    run, points, switches, means = (
        connection.execute(text(statement.format(order=order)), {"run": run_id})
        for statement in (_RUN, _EVALUATIONS, _SWITCHES, _MEANS)
    )
    acceptance, error = means.one()
    return measure(
        dict(run.mappings().one()),
        [Point(*row) for row in points],
        [Switch(*row) for row in switches],
        (acceptance, error),
    )


def store(connection: Connection, run_id: int) -> None:
    """Store the row of a run with a result."""
    connection.execute(insert(recovery), {"run_id": run_id} | measured(connection, run_id))
