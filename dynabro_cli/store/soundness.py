"""Checks of stored runs: the types of their values, their keys, and the agreement of their rows.

A few statements over whole tables check everything, so that a million rounds take seconds.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping, text

from dynabro_cli.store import recovery, row_digests
from dynabro_cli.store.claims import ENDED
from dynabro_cli.store.label_counts import counted_labels, of_labels
from dynabro_cli.store.row_digests import OF_RUNS
from dynabro_cli.store.sound_row import of_row
from dynabro_cli.store.tables import recovery as recoveries
from dynabro_cli.store.tables import runs
from dynabro_cli.store.value_types import of_another_type, sane_row

NOISE_COMPUTATIONS = 10
"""Gradient computations that measuring V costs before the first round, as in ``simulation.loop``."""
_NUMBER = r"(null|-?[0-9]{1,20}(\.[0-9]{1,20})?(e[-+]?[0-9]{1,3})?)"
POINT = re.compile(rf"\[{_NUMBER}(,{_NUMBER}){{0,2}}\]")
"""A model with as many numbers as ``simulation.loop`` records, as the recorder writes it."""
NUMBERS = re.compile(r"\[([1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*)?\]")
"""Numbers of workers, as the recorder writes them."""

_ROUNDS = """
    SELECT run_id, COUNT(*) AS stored, MIN(round) AS first, MAX(round) AS last, MAX(budget) AS spent,
           MIN(CASE WHEN previous IS NULL THEN budget - cost END) AS before,
           MIN(CASE WHEN cost < 1 OR budget < previous + cost + skipped OR (skipped = 0 AND budget > previous + cost)
                    THEN round END) AS wrong_budget,
           MIN(CASE WHEN dynamic AND NOT switched THEN round END) AS wrong_dynamic,
           SUM(CASE WHEN dynamic THEN 1 ELSE 0 END) AS dynamic, SUM(CASE WHEN switched THEN 1 ELSE 0 END) AS switched,
           MIN(byzantine) AS fewest, MAX(byzantine) AS most
    FROM (SELECT run_id, round, budget, cost, dynamic, switched, byzantine,
                 LAG(budget) OVER (PARTITION BY run_id ORDER BY round) AS previous,
                 round - 1 - LAG(round) OVER (PARTITION BY run_id ORDER BY round) AS skipped FROM rounds) AS steps
    GROUP BY run_id
"""
_EVALUATIONS = """
    SELECT e.run_id, MIN(e.round) AS round
    FROM evaluations AS e JOIN runs ON runs.id = e.run_id LEFT JOIN rounds AS r ON r.run_id = e.run_id AND r.round = e.round - 1
    WHERE e.round < 0 OR e.round > runs.rounds OR r.budget <> e.budget
       OR (e.round > 0 AND r.budget IS NULL AND (rounds_every = 1 OR e.budget NOT BETWEEN e.round AND runs.budget_spent))
       OR e.samples <> CAST(e.budget AS NUMERIC) * runs.batch_size * runs.workers
    GROUP BY e.run_id
"""
_LAST = """
    SELECT e.run_id, e.round, e.test_accuracy AS final_accuracy, e.test_loss AS final_loss, e.gap AS final_gap
    FROM evaluations AS e JOIN (SELECT run_id, MAX(round) AS round FROM evaluations GROUP BY run_id) AS l
      ON l.run_id = e.run_id AND l.round = e.round
"""
_STRAY = """
    SELECT run_id, MIN(round) FROM rounds JOIN runs ON runs.id = run_id
    WHERE rounds_every > 1 AND round <> runs.rounds - 1 AND round % CASE WHEN rounds_every > 1 THEN rounds_every ELSE 1 END <> 0
    GROUP BY run_id
"""
_COUNTS = """
    SELECT run_id, SUM(rounds) AS counted, MIN(rounds) AS least, MIN(byzantine) AS fewest, MAX(byzantine) AS most
    FROM byzantine_counts GROUP BY run_id
"""
_UNCOUNTED = """
    SELECT kept.run_id, MIN(kept.byzantine)
    FROM (SELECT run_id, rounds.byzantine, COUNT(*) AS rows_kept FROM rounds JOIN runs ON runs.id = run_id
          WHERE rounds_every > 1 GROUP BY run_id, rounds.byzantine) AS kept
         LEFT JOIN byzantine_counts AS c ON c.run_id = kept.run_id AND c.byzantine = kept.byzantine
    WHERE c.rounds IS NULL OR c.rounds < kept.rows_kept
    GROUP BY kept.run_id
"""
_WRONG_ROWS = (
    (_EVALUATIONS, "the evaluation after {} rounds does not fit the rounds"),
    (_STRAY, "round {} is stored, which rounds_every leaves out"),
    (_UNCOUNTED, "more rounds of the run have {} Byzantine workers than byzantine_counts says"),
)
_IDENTITIES = """
    SELECT i.run_id, i.tick, i.byzantine, workers, CASE WHEN clock = 'round' THEN rounds ELSE budget_spent END AS ticks,
           COALESCE((SELECT MIN(r.byzantine) FROM rounds AS r WHERE r.run_id = i.run_id AND r.round >= i.tick
                     AND r.round < following AND clock = 'round'), -1) AS fewest,
           COALESCE((SELECT MAX(r.byzantine) FROM rounds AS r WHERE r.run_id = i.run_id AND r.round >= i.tick
                     AND r.round < following AND clock = 'round'), -1) AS most
    FROM (SELECT run_id, tick, byzantine,
                 LEAD(tick, 1, 2147483647) OVER (PARTITION BY run_id ORDER BY tick) AS following FROM identities) AS i
         JOIN runs ON runs.id = i.run_id
"""
_RECOVERY = f"SELECT {', '.join(recoveries.c.keys())} FROM recovery"
_POINTS = "SELECT run_id, round, dimension, x FROM evaluations JOIN runs ON runs.id = run_id WHERE x IS NOT NULL"


def unsound_runs(connection: Connection) -> dict[int, list[str]]:
    """Return the problems of each damaged run by its id; no problem quotes the database.

    Args:
        connection: A connection with one snapshot.
    """
    found: defaultdict[int, list[str]] = defaultdict(list)
    for table, run_id in ((runs, "id"), *((table, "run_id") for table in OF_RUNS)):
        for number, column in connection.execute(text(of_another_type(table, run_id, connection.dialect.name))):
            if isinstance(number, int):  # a row without a run is reported elsewhere
                found[number].append(f"a value of {table.name}.{column} is of another type, or too large")
    kinds = {row["run_id"]: row for row in connection.execute(text(_ROUNDS)).mappings()}
    counts = {row["run_id"]: row for row in connection.execute(text(_COUNTS)).mappings()}
    labels = counted_labels(connection)
    wrong_rows = _wrong_rows(connection)
    last = {row["run_id"]: row for row in connection.execute(text(_LAST)).mappings()}
    told = {row["run_id"]: row for row in connection.execute(text(_RECOVERY)).mappings()}
    meant = recovery.measured(connection, skip=found)
    names = ", ".join(runs.c.keys())
    sane = text(f"SELECT {names} FROM runs WHERE {sane_row(connection.dialect.name)}")
    for run in connection.execute(sane).mappings():
        number = run["id"]
        if number in found:
            continue  # sums of its numbers mean nothing
        problems = [*of_row(dict(run)), *_of_rounds(run, kinds.get(number)), *_of_counts(run, counts.get(number))]
        problems += [*of_labels(run, labels.get(number)), *_of_end(run, last.get(number)), *wrong_rows.get(number, ())]
        if not problems:  # otherwise the row's own values are wrong
            problems = _of_recovery(run, told.get(number), meant.get(number))
        if problems:
            found[number] = problems
    for number, problem in row_digests.changed(connection).items():
        if number not in found:
            found[number].append(problem)
    return dict(found)


def _wrong_rows(connection: Connection) -> dict[int, list[str]]:
    """Return, by run, a row that is wrong for each kind of error."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for statement, problem in _WRONG_ROWS:
        for number, value in connection.execute(text(statement)):
            found[number].append(problem.format(value))
    for number, tick, byzantine, *limits in connection.execute(text(_IDENTITIES)):
        wrong_change = _of_identities(tick, byzantine, *limits)
        if wrong_change and wrong_change not in found[number]:
            found[number].append(wrong_change)
    points = connection.execute(text(_POINTS))
    wrong = {row[0]: row[1] for row in points if not (isinstance(row[3], str) and _is_point(row[3], row[2]))}
    for number, round_ in wrong.items():
        found[number].append(f"x after {round_} rounds does not have the run's dimension")
    return found


def _of_identities(tick: Any, byzantine: Any, workers: Any, ticks: Any, fewest: Any, most: Any) -> str | None:
    """Return the problem of a change of a run's identities."""
    if not (isinstance(byzantine, str) and NUMBERS.fullmatch(byzantine) and isinstance(workers, int)):
        return "a row of identities has no list of workers"
    numbers = json.loads(byzantine)
    if sorted(set(numbers)) != numbers or (numbers and not 1 <= numbers[0] <= numbers[-1] <= workers):
        return "a row of identities has no list of its workers, in order"
    if not (isinstance(tick, int) and isinstance(ticks, int) and 0 <= tick < ticks):
        return "identities has a row for a tick outside of the run"
    if fewest != -1 and not fewest == most == len(numbers):
        return f"from tick {tick} on, rounds and identities have different numbers of Byzantine workers"
    return None


def _of_recovery(run: RowMapping, stored: RowMapping | None, expected: Mapping[str, Any] | None) -> list[str]:
    """Return the problem of a run's row of recovery, which a run with a result has; a thinned run allows few checks."""
    if run["status"] not in ENDED:
        return [] if stored is None else ["it has a row of recovery, but no result"]
    if stored is None:
        return ["recovery has no row for this run"]
    if stored["reason"] not in (None, *recovery.REASONS):
        return ["unknown reason in recovery"]
    thinned = run["rounds_every"] != 1
    if expected is not None and not thinned and not recovery.agree(dict(stored), expected):
        return ["its row of recovery does not agree with its rounds and evaluations"]
    return []


def _is_point(x: str, dimension: int) -> bool:
    return POINT.fullmatch(x) is not None and x.count(",") + 1 == dimension


def _of_rounds(run: RowMapping, stored: RowMapping | None) -> list[str]:
    """Return the problems of a run's rounds, and of its row's statements about them."""
    before = (0,) if run["noise_bound"] is None else (0, NOISE_COMPUTATIONS)
    if stored is None:
        problems = [f"none of its {run['rounds']} rounds is stored"] if run["rounds"] else []
        return problems + ([] if run["budget_spent"] in before else ["it has spent budget without a round"])
    problems = []
    every, end = max(1, run["rounds_every"]), run["rounds"] - 1
    kept = end // every + 1 + (end % every > 0)
    if (stored["stored"], stored["first"], stored["last"]) != (kept, 0, end):
        meant = f"0 to {end}" if every == 1 else f"{kept} of them: 0, {end}, and the multiples of {every}"
        problems.append(
            f"{stored['stored']} of its {run['rounds']} rounds are stored, from {stored['first']} to {stored['last']}; "
            f"expected: {meant}"
        )
    if stored["before"] not in before:
        problems.append(f"{stored['before']} computations are spent before its first round")
    if stored["wrong_budget"] is not None:
        problems.append(f"the budget of round {stored['wrong_budget']} is not the budget of the round before plus its cost")
    if stored["spent"] != run["budget_spent"]:
        problems.append(f"budget_spent is {run['budget_spent']}, but its rounds spent {stored['spent']}")
    if stored["wrong_dynamic"] is not None:
        problems.append(f"round {stored['wrong_dynamic']} is dynamic, but not switched")
    if stored["dynamic"] != run["dynamic_rounds"] and (every == 1 or stored["dynamic"] > run["dynamic_rounds"]):
        problems.append(f"dynamic_rounds is {run['dynamic_rounds']}, and {stored['dynamic']} of its rounds are")
    all_told = run["clock"] == "round" and every == 1
    fits = stored["switched"] == run["switches"] if all_told else stored["switched"] <= run["switches"]
    if not fits or run["switches"] > run["budget_spent"]:
        problems.append(f"switches is {run['switches']}, and {stored['switched']} of its rounds have some")
    if stored["fewest"] < 0 or stored["most"] > run["workers"]:
        problems.append(f"{stored['fewest']} to {stored['most']} of its {run['workers']} workers are Byzantine")
    return problems


def _of_counts(run: RowMapping, counts: RowMapping | None) -> list[str]:
    """Return the problems of a run's histogram, which exists if only some rounds are kept."""
    every, counted = run["rounds_every"], 0 if counts is None else counts["counted"]
    if every == 1:
        return [] if counts is None else ["byzantine_counts has rows for this run, but rounds_every is 1"]
    problems = []
    if every < 1:
        problems.append(f"rounds_every is {every}")
    if run["status"] not in ENDED:
        problems.append(f"rounds_every is {every}, but it has no result")
    if counted != run["rounds"]:
        problems.append(f"byzantine_counts has {counted} of its {run['rounds']} rounds")
    if counts is not None and (counts["least"] < 1 or counts["fewest"] < 0 or counts["most"] > run["workers"]):
        problems.append(
            f"byzantine_counts has {counts['fewest']} to {counts['most']} of its {run['workers']} workers, in "
            f"{counts['least']} rounds or more"
        )
    return problems


def _of_end(run: RowMapping, last: RowMapping | None) -> list[str]:
    """Return the problems of a result's final numbers, which are the numbers of the last evaluation."""
    if run["status"] not in ENDED:
        return []
    if last is None or last["round"] != run["rounds"]:
        return ["its last evaluation is not stored"]
    wrong = [name for name in ("final_accuracy", "final_loss", "final_gap") if last[name] != run[name]]
    return [f"{', '.join(wrong)}: not equal to the last evaluation"] if wrong else []
