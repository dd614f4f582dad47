"""Recovery from switches: computed from a run's stored rounds and evaluations when it ends, one row of ``recovery`` per run.

A **switch** is a round at whose start, or within which, the Byzantine set changed (``rounds.switched``). It is **seen** by the
last evaluation before it, which has not met the new set yet, and by the evaluations after it. Switches between the same two
evaluations count as one, with the first of them. **After** a switch means between it and the next switch that is seen, with at
least one evaluation.

- ``dip``: fall of the test accuracy after a switch: the accuracy of the evaluation before it minus the lowest one after it; 0
  if it does not fall. The mean over the switches seen; ``largest_dip`` is the largest.
- ``recovery_rounds``, ``recovery_budget``: from a switch to the first evaluation, after the fall, at which the accuracy is
  back at its value before the switch, up to ``TOLERANCE``: rounds, and gradient computations per worker. 0 if the accuracy
  fell by no more than that. It may take longer than to the next switch, and is as coarse as the evaluations. The median over
  the switches seen; a switch without recovery counts as infinite. NULL if the median is infinite.
- ``switches_seen``, ``recoveries``: number of switches seen, and number of them from which the run recovers.
- ``worst_window``: the lowest mean accuracy of ``WINDOW`` evaluations in a row, after the first fifth of the budget spent; of
  all evaluations if there are fewer.
- ``acceptance``: the mean of ``rounds.acceptance``, the acceptance ratio of Byzantine messages, over the rounds that have it.
- ``aggregation_error``: the mean of ``rounds.aggregation_error`` over the rounds that have it.
- ``reason``: why the first five numbers, or the numbers of the recovery, are NULL; NULL if none of them is. A diverged run has
  no numbers. A run that was thinned before it had this row has the worst window only.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, text

from dynabro_cli.store.claims import RESULTS
from dynabro_cli.store.tables import recovery

TOLERANCE = 0.01
"""Largest difference from the accuracy before a switch that counts as recovered; a smaller fall is not a fall."""
WINDOW = 5
"""Evaluations per window."""
WARM_UP = 0.2
"""Share of the budget spent before the worst window: every run starts badly."""

DIVERGED, THINNED, NO_ACCURACY = "diverged", "thinned", "no accuracy"
NO_SWITCH, NOT_RECOVERED = "no switch", "most switches are not recovered from"
REASONS = (DIVERGED, THINNED, NO_ACCURACY, NO_SWITCH, NOT_RECOVERED)

_RUNS = f"SELECT id, status, rounds_every, budget_spent FROM runs WHERE {RESULTS} AND {{}} ORDER BY id"
_EVALUATIONS = """
    SELECT run_id, round, budget, test_accuracy FROM evaluations WHERE test_accuracy BETWEEN 0 AND 1 AND {}
    ORDER BY run_id, round
"""
_SWITCHES = "SELECT run_id, round, budget - cost FROM rounds WHERE switched AND {} ORDER BY run_id, round"
_MEANS = """
    SELECT run_id, AVG(CASE WHEN ABS(acceptance) < 1e290 THEN acceptance END{order}),
           AVG(CASE WHEN ABS(aggregation_error) < 1e290 THEN aggregation_error END{order})
    FROM rounds WHERE {} GROUP BY run_id
"""  # a server refuses a sum that is too large for a number type
_ORDER = {"postgresql": " ORDER BY round"}
"""Sums are rounded, and a server adds rows in any order; SQLite takes them from the index of ``rounds``, in order."""


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
    """One seen switch: the accuracy before it, the evaluations up to the next one, and all evaluations after it."""

    switch: Switch
    before: float
    after: Sequence[Point]
    behind: Sequence[Point]

    @property
    def dip(self) -> float:
        return max(0.0, self.before - min(point.accuracy for point in self.after))

    @property
    def recovery(self) -> tuple[float, float]:
        """Rounds and budget to recover; 0 if there is no fall, infinite if no recovery is seen."""
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
    """Return the lowest mean accuracy of ``WINDOW`` evaluations in a row, after ``WARM_UP``; None if there are none."""
    late = [point.accuracy for point in points if point.budget > WARM_UP * spent]
    size = min(WINDOW, len(late))
    windows = [late[start : start + size] for start in range(len(late) - size + 1)] if late else []
    return min((statistics.fmean(window) for window in windows), default=None)


def measure(
    run: Mapping[str, Any], points: Sequence[Point], switches: Sequence[Switch], means: tuple[float | None, float | None]
) -> dict[str, Any]:
    """Return a run's row of ``recovery``, without ``run_id``.

    Args:
        run: The columns ``status``, ``rounds_every`` and ``budget_spent`` of a run that has ended with a result.
        points: Its evaluations that have an accuracy, in order.
        switches: In order.
        means: Means of the acceptance ratio and the aggregation error of its rounds.
    """
    numbers: dict[str, Any] = dict.fromkeys(recovery.c.keys()[1:]) | {"switches_seen": 0, "recoveries": 0}
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


def measured(connection: Connection, run_id: int | None = None, *, skip: Iterable[int] = ()) -> dict[int, dict[str, Any]]:
    """Return the rows of ``recovery`` that runs with a result should have, by run, computed from their other rows.

    Args:
        connection: A connection to the database.
        run_id: One run; None for all.
        skip: Runs to skip, as their rows are damaged.
    """
    left_out = set(skip)

    def rows(statement: str, column: str = "run_id") -> Iterable[Any]:
        condition = "TRUE" if run_id is None else f"{column} = :run"
        order = _ORDER.get(connection.dialect.name, "")
        found = connection.execute(text(statement.format(condition, order=order)), {} if run_id is None else {"run": run_id})
        return (row for row in found if row[0] not in left_out)

    points: dict[int, list[Point]] = {}
    for number, round_, budget, accuracy in rows(_EVALUATIONS):
        points.setdefault(number, []).append(Point(round_, budget, accuracy))
    switches: dict[int, list[Switch]] = {}
    for number, round_, budget in rows(_SWITCHES):
        switches.setdefault(number, []).append(Switch(round_, budget))
    means = {number: (acceptance, error) for number, acceptance, error in rows(_MEANS)}
    found = {}
    for number, status, every, spent in rows(_RUNS, "id"):
        run = {"status": status, "rounds_every": every, "budget_spent": spent}
        found[number] = measure(run, points.get(number, []), switches.get(number, []), means.get(number, (None, None)))
    return found


def store(connection: Connection, run_id: int | None = None) -> int:
    """Store the rows of one run, or of all runs with a result and without a row; return their number."""
    present = set() if run_id is not None else set(connection.execute(text("SELECT run_id FROM recovery")).scalars())
    new = [{"run_id": number} | row for number, row in measured(connection, run_id, skip=present).items()]
    if new:
        connection.execute(insert(recovery), new)
    return len(new)


def agree(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Return True if a stored row is the expected one, up to the rounding of sums."""
    return all(
        value == stored[name]
        or (
            isinstance(value, float)
            and isinstance(stored[name], int | float)
            and math.isclose(value, stored[name], rel_tol=1e-9, abs_tol=1e-12)
        )
        for name, value in expected.items()
    )
