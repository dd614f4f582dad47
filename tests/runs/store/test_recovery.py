"""Recovery metrics: worked by hand on made-up runs, and stored, copied and checked with them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, delete, insert, select

from dynabro_cli.core import events
from dynabro_cli.runs.store.care.check import check
from dynabro_cli.runs.store.care.merge import merge
from dynabro_cli.runs.store.care.thin import thin
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.tables import recovery as table
from dynabro_cli.runs.store.tables import rounds
from dynabro_cli.runs.store.write import switch_recovery
from dynabro_cli.runs.store.write.switch_recovery import Point, Switch, episodes, worst_window
from tests.runs.store import made, sound
from tests.runs.store.made import read, record
from tests.tables import each_row

COLUMNS = table.c.keys()[1:]


def points(*accuracies: float, every: int = 10, cost: int = 2) -> list[Point]:
    """Evaluations after 0, 10, 20, ... rounds of two computations each."""
    return [Point(every * k, cost * every * k, accuracy) for k, accuracy in enumerate(accuracies)]


def switches(*rounds: int) -> list[Switch]:
    return [Switch(round_, 2 * round_) for round_ in rounds]


def measured(
    accuracies: list[float], at: list[int], status: str = "finished", every: int = 1
) -> dict[str, Any]:
    own = points(*accuracies)
    run = {"status": status, "rounds_every": every, "budget_spent": own[-1].budget if own else 40}
    return switch_recovery.measure(run, own, switches(*at), (0.75, 0.125))


def test_one_switch_by_hand() -> None:
    """At round 20 the accuracy is 0.8, then 0.5, 0.6, 0.795, 0.9: a dip of 0.3. 0.795 is 0.8 up to
    0.01, at round 50: 30 rounds, and 60 computations, from round 20. Behind the first fifth of 120,
    which ends at 24, are 0.8 ... 0.9: the worst five in a row are those all, 3.595/5.
    """
    row = measured([0.1, 0.5, 0.8, 0.5, 0.6, 0.795, 0.9], [20])
    assert row["dip"] == row["largest_dip"] == pytest.approx(0.3)
    assert (row["recovery_rounds"], row["recovery_budget"]) == (30, 60)
    assert (row["switches_seen"], row["recoveries"], row["reason"]) == (1, 1, None)
    assert row["worst_window"] == pytest.approx(3.595 / 5)
    assert (row["acceptance"], row["aggregation_error"]) == (0.75, 0.125)


def test_a_switch_is_seen_by_the_evaluations_around_it() -> None:
    """The model after 20 rounds has met the set of round 19, but not of round 20; 25 and 29 count
    as one with 21.
    """
    found = episodes(points(0.1, 0.2, 0.3, 0.4, 0.5, 0.6), switches(19, 21, 25, 29, 40))
    assert [(episode.switch.round, episode.before) for episode in found] == [
        (19, 0.2),
        (21, 0.3),
        (40, 0.5),
    ]
    assert [[point.round for point in episode.after] for episode in found] == [[20], [30, 40], [50]]
    assert [[point.round for point in episode.behind] for episode in found] == [
        [20, 30, 40, 50],
        [30, 40, 50],
        [50],
    ]


def test_a_switch_behind_the_last_evaluation_is_not_seen() -> None:
    assert episodes(points(0.1, 0.2), switches(10)) == []
    assert episodes([], switches(3)) == []
    assert episodes(points(0.1), switches(0)) == []


def test_several_switches_by_hand() -> None:
    """Dips 0.2, 0 and 0.4: mean 0.2. The first recovers at round 40, behind the second switch: 40 -
    12 = 28 rounds; there is nothing to recover from behind the second; from the third it never
    does. Median of 28, 0 and infinity: 28.
    """
    row = measured([0.5, 0.6, 0.4, 0.45, 0.6, 0.2, 0.3], [12, 25, 41])
    first, second, third = episodes(
        points(0.5, 0.6, 0.4, 0.45, 0.6, 0.2, 0.3), switches(12, 25, 41)
    )
    assert (first.switch.round, first.dip, first.recovery) == (12, pytest.approx(0.2), (28, 56))
    assert (second.dip, second.recovery) == (0, (0, 0))
    assert (third.dip, third.recovery) == (pytest.approx(0.4), (math.inf, math.inf))
    assert row["dip"] == pytest.approx(0.2)
    assert row["largest_dip"] == pytest.approx(0.4)
    assert (row["recovery_rounds"], row["recovery_budget"]) == (28, 56)
    assert (row["switches_seen"], row["recoveries"]) == (3, 2)


def test_a_fall_within_the_tolerance_is_none_to_recover_from() -> None:
    row = measured([0.5, 0.6, 0.591, 0.595], [10])
    assert row["dip"] == pytest.approx(0.009)
    assert (row["recovery_rounds"], row["recovery_budget"]) == (0, 0)


def test_a_fall_that_comes_late_is_one() -> None:
    """0.6 holds at first; it falls at round 30 and is back at 40."""
    row = measured([0.5, 0.6, 0.65, 0.3, 0.6], [10])
    assert (row["dip"], row["recovery_rounds"]) == (pytest.approx(0.3), 30)


def test_most_switches_are_not_recovered_from() -> None:
    """The mean of the middle two, 0 and infinity, is not finite either."""
    row = measured([0.5, 0.6, 0.6, 0.2], [10, 20])
    assert (row["recovery_rounds"], row["recovery_budget"], row["recoveries"]) == (None, None, 1)
    assert row["reason"] == "most switches are not recovered from"
    assert row["dip"] == pytest.approx(0.2)


@each_row(
    ("arguments", "reason", "known"),
    [
        (([0.1, 0.9], [0], "diverged"), "diverged", set()),
        (([0.1, 0.9], []), "no switch", {"worst_window", "acceptance", "aggregation_error"}),
        (([], [3]), "no accuracy", {"acceptance", "aggregation_error"}),
        (([0.1, 0.9], [0], "finished", 5), "thinned", {"worst_window"}),
    ],
)
def test_what_cannot_be_told_has_a_reason(arguments: Any, reason: str, known: set[str]) -> None:
    row = measured(*arguments)
    assert row["reason"] == reason
    assert (row["switches_seen"], row["recoveries"]) == (0, 0)
    numbers = set(COLUMNS) - {"reason", "switches_seen", "recoveries"}
    assert {name for name in numbers if row[name] is not None} == known


def test_the_worst_window_by_hand() -> None:
    """The first 36 of a budget of 180 do not count: the evaluations at 0 and 20.

    Among 4 3 5 1 2 6 7 8 tenths, the worst five in a row are 4 3 5 1 2: 0.3.
    """
    own = points(0.0, 0.0, 0.4, 0.3, 0.5, 0.1, 0.2, 0.6, 0.7, 0.8)
    assert worst_window(own, 180) == pytest.approx(0.3)
    assert worst_window(own[:4], 180) == pytest.approx(0.35)
    assert worst_window(own[:2], 180) is None


# --- in a database


def run(
    seed: int,
    *accuracies: float,
    at: tuple[int, ...] = (),
    status: str = "finished",
    **columns: Any,
) -> list[events.Event]:
    """A run of as many rounds as evaluations behind the first, with switches at some."""
    number = len(accuracies) - 1
    rounds = tuple(
        made.a_round(
            k,
            switched=k in at,
            acceptance=0.5 * k if k % 2 == 0 else None,
            aggregation_error=None if k == 1 else k / 4,
        )
        for k in range(number)
    )
    totals = events.Totals(number, number, len(at), 0)
    start = sound.beginning(seed, number, **columns | {"budget": number})[0]
    seen = [made.evaluated(k, accuracy) for k, accuracy in enumerate(accuracies)]
    ends = {
        "finished": events.Finished,
        "diverged": lambda *given: events.Diverged(number - 1, *given),
    }
    last = accuracies[-1]
    return [
        start,
        events.RoundsDone(rounds, totals),
        *seen,
        ends[status](last, 1 - last, None, totals),
    ]


def rows(database: Path | str) -> dict[int, dict[str, Any]]:
    found = read(database, f"SELECT run_id, {', '.join(COLUMNS)} FROM recovery ORDER BY run_id")
    return {row[0]: dict(zip(COLUMNS, row[1:], strict=True)) for row in found}


def test_a_run_has_its_row_when_it_ends_and_no_other_run_has(engine: Engine, database: str) -> None:
    """Acceptance 0, 1, 2 in rounds 0, 2, 4: mean 1. Errors 0, 2, 3, 4 quarters: mean 9/16. A switch
    at round 2: 0.8, then 0.4, 0.6, 0.8 after 5 rounds: 3 rounds.
    """
    record(engine, run(1, 0.1, 0.5, 0.8, 0.4, 0.6, 0.8, at=(2,)))
    record(engine, run(2, 0.1, 0.5, at=(0,), status="diverged"))
    record(engine, run(3, 0.1, 0.5)[:-1]).interrupted()
    found = rows(database)
    assert list(found) == [1, 2]
    row = found[1]
    assert row["dip"] == pytest.approx(0.4)
    assert (row["recovery_rounds"], row["recovery_budget"], row["reason"]) == (3, 3, None)
    assert row["acceptance"] == pytest.approx(1.0)
    assert row["aggregation_error"] == pytest.approx(9 / 16)
    assert found[2]["reason"] == "diverged"
    assert check(database).problems == []


def test_means_do_not_depend_on_the_order_in_which_rows_were_written(
    engine: Engine, database: str
) -> None:
    """A run that was interrupted often has new rows in the place of old ones.

    1e16 + 1 - 1e16 + 1 is 1 in this order, and 0 in the other.
    """
    record(engine, run(1, 0.1, 0.5, 0.8, 0.4, 0.6))
    errors, means = (1e16, 1.0, -1e16, 1.0), []
    with engine.begin() as connection:
        for step in (1, -1):
            stored = [
                dict(row)
                for row in connection.execute(select(rounds).order_by(rounds.c.round)).mappings()
            ]
            connection.execute(delete(rounds))
            for row, error in list(zip(stored, errors, strict=True))[::step]:
                connection.execute(insert(rounds), [row | {"aggregation_error": error}])
            means.append(switch_recovery.measured(connection, 1)["aggregation_error"])
    assert means == [0.25, 0.25]


def test_a_repetition_has_its_own(engine: Engine, database: str) -> None:
    record(engine, run(1, 0.1, 0.5, 0.8, 0.4, at=(2,)))
    record(engine, run(1, 0.1, 0.5, 0.8, 0.7, at=(2,)))
    (row,) = rows(database).values()
    assert row["dip"] == pytest.approx(0.1)


IDENTITIES = (events.Identity(0, (1, 2)), events.Identity(2, ()), events.Identity(3, (9,)))


def changing(seed: int) -> list[events.Event]:
    """A run of five rounds whose identities are stored."""
    counts = [2, 2, 0, 1, 1]
    rounds = tuple(
        made.a_round(k, byzantine=count, switched=k in (2, 3)) for k, count in enumerate(counts)
    )
    totals = events.Totals(5, 5, 2, 0)
    start = sound.beginning(seed, 5, budget=5)[0]
    return [
        start,
        made.evaluated(0),
        events.RoundsDone(rounds, totals, IDENTITIES),
        made.evaluated(5),
        events.Finished(0.5, 0.5, None, totals),
    ]


def test_identities_are_stored_one_row_a_change(engine: Engine, database: str) -> None:
    record(engine, changing(1))
    assert read(database, "SELECT * FROM identities ORDER BY tick") == [
        (1, 0, "[1,2]"),
        (1, 2, "[]"),
        (1, 3, "[9]"),
    ]
    assert check(database).problems == []


def test_a_run_that_goes_on_forgets_the_changes_behind_its_checkpoint(
    engine: Engine, database: str
) -> None:
    start, first, done, *_ = changing(1)
    assert isinstance(done, events.RoundsDone)
    begun = events.RoundsDone(done.rounds[:2], made.totals(2), IDENTITIES[:1])
    more = events.RoundsDone(done.rounds[2:4], made.totals(4), IDENTITIES[1:])
    record(engine, [start, first, begun, made.checkpointed(2), more]).interrupted()
    assert len(read(database, "SELECT * FROM identities")) == 3
    again = made.Recorder(engine)
    assert again.checkpoint(sound.key(1)) == b"state"
    assert isinstance(start, events.Started)
    again.record(events.Started(start.run_key, start.record, made.totals(2)))
    assert read(database, "SELECT tick FROM identities") == [(0,)]


def test_a_merge_copies_both(engine: Engine, database: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    record(open_for_writing(other), [*run(1, 0.1, 0.5, 0.8, 0.4, at=(2,)), *changing(2)])
    assert len(merge(other, database).copied) == 2
    assert rows(database) == rows(other)
    assert read(database, "SELECT * FROM identities ORDER BY tick") == read(
        other, "SELECT * FROM identities ORDER BY tick"
    )
    assert check(database).problems == []


def test_a_thinned_copy_keeps_both(path: Path, tmp_path: Path) -> None:
    record(open_for_writing(str(path)), [*run(1, 0.1, 0.5, 0.8, 0.4, 0.6, at=(2,)), *changing(2)])
    target = tmp_path / "thin.db"
    thin(str(path), target, 3)
    assert rows(target) == rows(path)
    assert len(read(target, "SELECT * FROM identities")) == 3
    assert check(str(target)).problems == []
    again = tmp_path / "again.db"
    merge(str(target), str(again))
    assert rows(again) == rows(path)
