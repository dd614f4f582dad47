"""The writer of the database: what it stores, when, and what it never loses."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import platform
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine, event

from dynabro_cli.answers.analysis.paired_tests import student
from dynabro_cli.core import events
from dynabro_cli.core.errors import AlreadyStoredError, BusyError, StorageError
from dynabro_cli.runs.store.environments import VERSIONS
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.origin import Origin
from dynabro_cli.runs.store.write.recorder import Recorder
from dynabro_cli.runs.store.write.standing import never, state_of
from tests.runs.store.made import (
    KEY,
    RECORD,
    Clock,
    a_file,
    a_round,
    change,
    diverged,
    evaluated,
    finished,
    read,
    record,
    rounds,
    started,
    totals,
    whole_run,
)


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> str:
    """Both kinds; a test of one kind only names it by ``parametrize``."""
    kind: str = request.param
    return kind


@pytest.fixture
def another_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its standard input is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        yield process


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place where the clocks are 14 hours ahead of UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Pacific/Kiritimati")
        time.tzset()
        yield
    time.tzset()


def one(database: str, columns: str) -> tuple[Any, ...]:
    """The columns of the only run."""
    (row,) = read(database, f"SELECT {columns} FROM runs")
    return row


def counts(database: str) -> tuple[int, int, int]:
    """How many rows there are in runs, rounds and evaluations."""
    return read(
        database,
        "SELECT (SELECT COUNT(*) FROM runs), (SELECT COUNT(*) FROM rounds), (SELECT COUNT(*) "
        "FROM evaluations)",
    )[0]


def orphans(database: str) -> int:
    """Rows of rounds and evaluations whose run is gone."""
    sql = (
        "SELECT COUNT(*) FROM (SELECT run_id FROM rounds UNION ALL SELECT run_id FROM "
        "evaluations) AS written "
        "WHERE run_id NOT IN (SELECT id FROM runs)"
    )
    return read(database, sql)[0][0]


# --- rows


def test_every_number_given_is_stored(engine: Engine, database: str) -> None:
    first = a_round(
        0,
        level=2,
        cost=4,
        budget=4,
        dynamic=True,
        accepted=False,
        byzantine=5,
        aggregation_error=None,
    )
    second = a_round(
        1, level=None, cost=1, budget=5, switched=True, accepted=True, gradient_norm=1e-300
    )
    score = events.Evaluated(2, 5, 1360, 0.625, 1.5, 2.25, None)
    end = events.Finished(0.625, 1.5, None, events.Totals(2, 5, 1, 1, 0.75))
    record(
        engine,
        [started(noise_bound=0.1 + 0.2), events.RoundsDone((first, second), totals(2)), score, end],
        origin=Origin("abc"),
        sweep="fig",
    )

    columns = ", ".join(RECORD).replace("versions", VERSIONS)
    assert one(database, columns) == tuple((RECORD | {"noise_bound": 0.1 + 0.2}).values())
    assert one(database, "id, run_key, status, sweep, git_commit, error") == (
        1,
        KEY,
        "finished",
        "fig",
        "abc",
        None,
    )
    assert one(database, "rounds, budget_spent, switches, dynamic_rounds, squared_gradients") == (
        2,
        5,
        1,
        1,
        0.75,
    )
    assert one(database, "final_accuracy, final_loss, final_gap, pid, host") == (
        0.625,
        1.5,
        None,
        os.getpid(),
        platform.node(),
    )
    for item in (first, second):
        names = ", ".join(asdict(item))
        stored = read(database, f"SELECT run_id, {names} FROM rounds WHERE round = ?", item.round)
        assert stored == [(1, *asdict(item).values())]
    assert read(database, "SELECT * FROM evaluations") == [(1, *astuple(score)[:-1])]


def test_an_environment_is_stored_once(engine: Engine, database: str) -> None:
    # longer than a value that a server can index
    long = json.dumps({"continued": [random.Random(0).randbytes(20_000).hex()]})
    for number, versions in enumerate((long, long, "{}")):
        record(
            engine,
            [started(f"{number}", versions=versions), events.Finished(0.5, 1.5, None, totals(0))],
        )
    assert [row[0] for row in read(database, f"SELECT {VERSIONS} FROM runs ORDER BY id")] == [
        long,
        long,
        "{}",
    ]
    assert sorted(row[0] for row in read(database, "SELECT versions FROM environments")) == sorted(
        {long, "{}"}
    )


def utc() -> dt.datetime:
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)


@pytest.mark.usefixtures("far_east")
def test_times_are_in_utc_and_add_up(engine: Engine, database: str, clock: Clock) -> None:
    before = utc()
    recorder = record(engine, [started()])
    clock.now += 12.5
    recorder.record(finished(0))
    start, end, wall = one(database, "started_at, finished_at, wall_seconds")
    start, end = (dt.datetime.fromisoformat(str(moment)) for moment in (start, end))
    assert before <= start <= end <= utc()
    assert wall == 12.5


def test_one_recorder_writes_one_run_after_another(engine: Engine, database: str) -> None:
    recorder = record(engine, [*whole_run(2), *whole_run(3, key="cd" * 32, seed=4)])
    assert read(database, "SELECT seed, rounds, status FROM runs ORDER BY id") == [
        (3, 2, "finished"),
        (4, 3, "finished"),
    ]
    assert read(
        database, "SELECT run_id, COUNT(*) FROM rounds GROUP BY run_id ORDER BY run_id"
    ) == [(1, 2), (2, 3)]
    assert recorder.run_id is None


@a_file
def test_a_model_is_stored_as_compact_json(engine: Engine, database: str) -> None:
    points = [(3.0, -3.0), (0.333333343, math.nan, 1e-30), None]
    record(
        engine, [started(), *(evaluated(number, x=point) for number, point in enumerate(points))]
    )._commit({})
    stored = [("[3.0,-3.0]",), ("[0.333333343,null,1e-30]",), (None,)]
    assert read(database, "SELECT x FROM evaluations ORDER BY round") == stored


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_null(bad: float, engine: Engine, database: str) -> None:
    worst = a_round(0, gradient_norm=bad, aggregation_error=bad)
    score = events.Evaluated(1, 1, 272, 0.1, bad, bad, bad)
    end = events.Diverged(0, bad, bad, bad, events.Totals(1, 1, 0, 0, bad))
    record(engine, [started(), events.RoundsDone((worst,), totals(1)), score, end])
    assert read(database, "SELECT gradient_norm, aggregation_error, learning_rate FROM rounds") == [
        (None, None, 0.01)
    ]
    assert read(database, "SELECT test_accuracy, test_loss, train_loss, gap FROM evaluations") == [
        (0.1, None, None, None)
    ]
    assert one(database, "status, final_accuracy, final_loss, final_gap") == (
        "diverged",
        None,
        None,
        None,
    )
    assert one(database, "squared_gradients") == (None,)


@a_file
def test_what_has_changed_in_the_way_of_computing_is_stored_at_the_end(
    engine: Engine, database: str
) -> None:
    begun = started(versions='{"compile":"on","graphs":"no shape has come twice","torch":"2.14"}')
    end = replace(finished(5), how={"graphs": "on: 2 shapes, 3 replays"})
    record(engine, [begun, rounds(0, 4), evaluated(5, 0.1), end])
    (versions,) = one(database, VERSIONS)
    assert json.loads(versions) == {
        "compile": "on",
        "graphs": "on: 2 shapes, 3 replays",
        "torch": "2.14",
    }


def test_a_diverged_run_is_a_result(engine: Engine, database: str) -> None:
    record(engine, [started(), rounds(0, 4), evaluated(5, 0.1), diverged(5)])
    assert one(database, "status, final_accuracy, final_loss, rounds") == ("diverged", 0.1, None, 5)
    stored = state_of(engine, KEY).result
    assert stored is not None
    assert (stored["id"], stored["status"], stored["final_accuracy"], stored["final_gap"]) == (
        1,
        "diverged",
        0.1,
        None,
    )


def test_what_is_stored_of_a_finished_run(engine: Engine) -> None:
    record(
        engine, [started(), rounds(0, 1), evaluated(2, None, gap=1.5), finished(2, None, gap=1.5)]
    )
    stored = state_of(engine, KEY).result
    assert stored is not None
    assert (stored["id"], stored["status"], stored["final_accuracy"], stored["final_gap"]) == (
        1,
        "finished",
        None,
        1.5,
    )
    assert state_of(engine, "cd" * 32).result is None


def test_interrupted_keeps_what_there_is(engine: Engine, database: str) -> None:
    recorder = record(engine, [started(), rounds(0, 24), evaluated(20)])
    recorder.interrupted()
    assert one(database, "status, rounds, budget_spent, switches, final_accuracy") == (
        "interrupted",
        25,
        25,
        1,
        None,
    )
    assert one(database, "finished_at IS NOT NULL, wall_seconds >= 0") == (1, 1)
    assert counts(database) == (1, 25, 1)
    assert state_of(engine, KEY).result is None
    recorder.interrupted()  # nothing is being recorded any more
    assert counts(database) == (1, 25, 1)


def test_failed_keeps_the_error(engine: Engine, database: str) -> None:
    recorder = record(engine, [started(), rounds(0, 4)])
    recorder.failed("Traceback ...\nValueError: bang")
    assert one(database, "status, rounds, error") == (
        "failed",
        5,
        "Traceback ...\nValueError: bang",
    )
    assert state_of(engine, KEY).result is None


@a_file
def test_failed_keeps_the_end_of_a_long_error(engine: Engine, database: str) -> None:
    recorder = record(engine, [started()])
    recorder.failed("x" * 100_000 + "ValueError: the last line is what matters")
    (error,) = one(database, "error")
    assert len(error) <= 4000
    assert error.endswith("xValueError: the last line is what matters")


@a_file
@pytest.mark.parametrize("ending", [Recorder.interrupted, lambda recorder: recorder.failed("bang")])
def test_nothing_is_made_up_before_the_start(
    ending: Callable[[Recorder], None], engine: Engine, database: str
) -> None:
    ending(Recorder(engine))
    assert counts(database) == (0, 0, 0)


@pytest.mark.parametrize("ending", [Recorder.interrupted, lambda recorder: recorder.failed("bang")])
def test_a_run_without_a_result_is_replaced(
    ending: Callable[[Recorder], None], engine: Engine, database: str
) -> None:
    recorder = record(engine, [started(), rounds(0, 24), evaluated(20)])
    ending(recorder)
    record(engine, whole_run(3))
    assert one(database, "status, rounds, error") == ("finished", 3, None)
    assert counts(database) == (1, 3, 1)
    assert orphans(database) == 0


def test_deleting_a_run_deletes_its_rows(engine: Engine, database: str) -> None:
    record(engine, [*whole_run(3), *whole_run(5, key="cd" * 32)])
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM runs WHERE id = 1")
    assert counts(database) == (1, 5, 1)
    assert orphans(database) == 0


# --- when


def test_a_run_is_finished_when_its_last_rows_are_there(
    engine: Engine, database: str, clock: Clock
) -> None:
    seen: list[tuple[str, int, int]] = []

    def look(*_: object) -> None:
        seen.extend(
            read(
                database,
                "SELECT status, (SELECT COUNT(*) FROM rounds), (SELECT COUNT(*) FROM "
                "evaluations) FROM runs",
            )
        )

    recorder = record(engine, [started()])
    # another connection looks before the first statement and after each
    for name in ("after_cursor_execute", "commit"):
        event.listen(engine, name, look)
    recorder.record(rounds(0, 4))
    recorder.record(evaluated(5))
    look()
    recorder.record(finished(5))
    event.remove(engine, "after_cursor_execute", look)
    look()
    assert set(seen) == {("running", 0, 0), ("finished", 5, 1)}
    # it did look while the last transaction was being written
    assert seen.count(("running", 0, 0)) > 3


@a_file
def test_rows_are_committed_once_a_second(engine: Engine, database: str, clock: Clock) -> None:
    recorder = record(engine, [started()])
    history = []
    for step, seconds in enumerate([0.5, 0.4, 0.1, 0.9, 0.1, 5.0, 0.9]):
        clock.now += seconds
        recorder.record(rounds(step, step))
        history.append((counts(database)[1], *one(database, "rounds, budget_spent, status")))
    assert [rows for rows, *_ in history] == [0, 0, 3, 3, 5, 6, 6]
    assert all((rows, rows, "running") == tuple(rest) for rows, *rest in history)
    clock.now += 0.1
    recorder.record(evaluated(7))
    assert counts(database) == (1, 7, 1)
    recorder.record(finished(7))
    assert counts(database) == (1, 7, 1)


@a_file
def test_the_clock_starts_anew_with_each_run(engine: Engine, database: str, clock: Clock) -> None:
    recorder = record(engine, whole_run(2))
    clock.now += 100
    recorder.record(started("cd" * 32))
    recorder.record(rounds(0, 0))
    assert counts(database)[1] == 2
    clock.now += 1
    recorder.record(rounds(1, 1))
    assert counts(database)[1] == 4


# --- who


def dead_pid() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_a_run_left_by_a_dead_process_is_replaced(engine: Engine, database: str) -> None:
    recorder = record(engine, [started(), rounds(0, 24)])
    recorder._last_commit = -math.inf  # a second has passed
    recorder.record(evaluated(20))
    assert counts(database) == (1, 25, 1)
    ((owner,),) = read(database, "SELECT owner FROM runs")
    machine, _, beginning, random = owner.split(":")
    change(database, "UPDATE runs SET owner = ?", f"{machine}:{dead_pid()}:{beginning}:{random}")
    assert state_of(engine, KEY).result is None
    record(engine, whole_run(3))
    assert one(database, "status, rounds, pid") == ("finished", 3, os.getpid())
    assert counts(database) == (1, 3, 1)
    assert orphans(database) == 0


def test_a_run_in_progress_is_refused_to_all_others(engine: Engine, database: str) -> None:
    record(engine, [started(), rounds(0, 4)])
    before = read(database, "SELECT * FROM runs")
    newcomer = Recorder(engine)
    for attempt in (lambda: newcomer.state(KEY), lambda: newcomer.record(started())):
        with pytest.raises(BusyError) as caught:
            attempt()
        assert f"process {os.getpid()} on {platform.node()}" in str(caught.value)
    newcomer.interrupted()  # which is not to touch the other's run
    newcomer.failed("bang")
    assert read(database, "SELECT * FROM runs") == before


def test_why_a_run_failed_is_text_that_every_database_takes(engine: Engine, database: str) -> None:
    record(engine, [started()]).failed("bang\0bang")
    assert one(database, "status, error") == ("failed", "bang\ufffdbang")


# --- again


def test_a_repetition_takes_the_place_of_the_result_when_complete(
    engine: Engine, database: str
) -> None:
    record(engine, whole_run(3, accuracy=0.25))
    repetition = record(engine, [started(), rounds(0, 4), evaluated(5, 0.75)])
    stored = state_of(engine, KEY).result
    assert stored is not None
    assert (stored["id"], stored["final_accuracy"]) == (1, 0.25)
    repetition.record(finished(5, 0.75))
    assert one(database, "run_key, status, rounds, final_accuracy") == (KEY, "finished", 5, 0.75)
    assert counts(database) == (1, 5, 1)
    assert orphans(database) == 0


def test_nobody_ever_sees_the_result_gone(engine: Engine, database: str) -> None:
    record(engine, whole_run(3, accuracy=0.25))
    seen: set[tuple[Any, ...]] = set()

    def look(*_: object) -> None:
        seen.add(
            tuple(
                read(
                    database,
                    "SELECT final_accuracy, n FROM runs, final_accuracy WHERE run_key = ?",
                    KEY,
                )
            )
        )

    repetition = record(engine, [started(), rounds(0, 4)])
    for name in ("after_cursor_execute", "commit"):
        event.listen(engine, name, look)
    repetition.record(finished(5, 0.75))
    event.remove(engine, "after_cursor_execute", look)
    look()
    assert seen == {((0.25, 1),), ((0.75, 1),)}  # and its repetition is not counted beside it


@pytest.mark.parametrize("ending", [Recorder.interrupted, lambda recorder: recorder.failed("bang")])
def test_a_repetition_that_ends_early_leaves_the_result(
    ending: Callable[[Recorder], None], engine: Engine, database: str
) -> None:
    record(engine, whole_run(3, accuracy=0.25))
    whole = "SELECT * FROM {} WHERE {} = 1"
    tables = [
        whole.format(*names)
        for names in (("runs", "id"), ("rounds", "run_id"), ("evaluations", "run_id"))
    ]
    before = [read(database, sql) for sql in tables]
    ending(record(engine, [started(), rounds(0, 1), evaluated(2, 0.75)]))
    assert [read(database, sql) for sql in tables] == before
    assert counts(database)[0] == 2

    record(engine, whole_run(5, accuracy=0.75))
    assert one(database, "run_key, status, rounds, final_accuracy") == (KEY, "finished", 5, 0.75)
    assert counts(database) == (1, 5, 1)
    assert orphans(database) == 0


def test_two_repetitions_at_once_are_refused(
    engine: Engine, database: str, another_process: subprocess.Popen[bytes]
) -> None:
    record(engine, whole_run(3))
    record(engine, [started()])
    change(database, "UPDATE runs SET pid = ? WHERE status = 'running'", another_process.pid)
    with pytest.raises(BusyError, match=str(another_process.pid)):
        record(engine, [started()])


@a_file
def test_a_repetition_of_a_diverged_run(engine: Engine, database: str) -> None:
    record(engine, [started(), rounds(0, 4), diverged(5)])
    record(engine, [started(), rounds(0, 2), diverged(3)])
    assert one(database, "run_key, status, rounds") == (KEY, "diverged", 3)


def test_a_result_is_not_repeated_unasked(engine: Engine, database: str) -> None:
    record(engine, whole_run(3))
    before = read(database, "SELECT * FROM runs")
    with pytest.raises(AlreadyStoredError, match="run 1 is stored as finished already"):
        record(engine, whole_run(5), repeat=never)
    assert read(database, "SELECT * FROM runs") == before
    record(engine, [started("cd" * 32), rounds(0, 4)]).failed("bang")
    record(engine, whole_run(5, key="cd" * 32), repeat=never)  # which was no result
    assert read(database, "SELECT status, rounds FROM runs ORDER BY rounds") == [
        ("finished", 3),
        ("finished", 5),
    ]


@a_file
def test_why_a_run_failed(engine: Engine, database: str) -> None:
    recorder = record(engine, whole_run(3), repeat=never)
    assert recorder.state(KEY).end == "stored"
    assert recorder.state("cd" * 32).end is None
    record(engine, [started("cd" * 32)]).failed("bang")
    state = recorder.state("cd" * 32)
    assert state.end == "failed"
    assert state.row is not None
    assert state.row["error"] == "bang"
    assert Recorder(engine).state("cd" * 32).end is None  # which makes it again


# --- trouble


def test_a_full_disk_loses_nothing_that_was_stored(path: Path, clock: Clock) -> None:
    engine = open_for_writing(str(path))
    record(engine, whole_run(3))

    @event.listens_for(engine, "connect")
    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(
            f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0] + 1}"
        )

    recorder = record(engine, [started("cd" * 32)])
    clock.now += 1
    with pytest.raises(StorageError, match="make room") as caught:
        recorder.record(rounds(0, 2000))
    assert str(path) in str(caught.value)
    assert read(path, "SELECT status, rounds FROM runs ORDER BY id") == [
        ("finished", 3),
        ("running", 0),
    ]
    assert counts(path) == (2, 3, 1)
    assert read(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_locked_database_is_called_busy(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record(engine, [started()])
    other = open_for_writing(database)
    with other.begin():
        monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "0.1")
        with pytest.raises(BusyError, match=r"was locked by another program for 0\.1 s"):
            recorder.record(finished(0))
    recorder.record(finished(0))  # and then it can be repeated
    assert one(database, "status") == ("finished",)
    other.dispose()


def test_a_batch_that_could_not_be_written_is_not_forgotten(database: str, clock: Clock) -> None:
    engine = open_for_writing(database)
    recorder = record(engine, [started()])

    @event.listens_for(engine, "commit")
    def refuse(_: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    clock.now += 1
    with pytest.raises(BusyError):
        recorder.record(rounds(0, 4))
    event.remove(engine, "commit", refuse)
    assert counts(database) == (1, 0, 0)
    recorder.interrupted()
    assert one(database, "status, rounds") == ("interrupted", 5)
    assert counts(database) == (1, 5, 0)


# --- the views


@pytest.fixture
def cells(engine: Engine) -> Engine:
    """Runs of several cells and seeds, among them some that ended without a result."""
    accuracies = {
        "sgd": [0.91, 0.93, 0.88, 0.915],
        "momentum:beta=0.99": [0.1, 0.1, 0.11],
        "dynabro": [0.96],
    }
    for method, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            bad = method.startswith("momentum") and seed < 2
            end = diverged(4 + seed, accuracy) if bad else finished(4 + seed, accuracy)
            switches = (
                a_round(0, byzantine=seed),
                *(a_round(number, byzantine=8 - number % 3) for number in range(1, 4 + seed)),
            )
            record(
                engine,
                [
                    started(f"{method}{seed}", method=method, seed=seed),
                    events.RoundsDone(switches, totals(len(switches))),
                    end,
                ],
            )
    for seed, gap in enumerate([0.5, 0.25]):
        columns = {"task": "quadratic", "model": None, "seed": seed}
        record(
            engine, [started(f"quadratic{seed}", **columns), rounds(0, 1), finished(2, None, gap)]
        )
    record(engine, [started("stopped", method="sgd", seed=9), rounds(0, 1)]).interrupted()
    record(engine, [started("wrong", method="sgd", seed=10), rounds(0, 1)]).failed("bang")
    record(engine, [started("now", method="sgd", seed=11)])
    return engine


CELL = [
    *(
        "task",
        "model",
        "method",
        "aggregator",
        "pre_aggregators",
        "attack",
        "attack_entry",
        "switching",
        "clock",
    ),
    *(
        "workers",
        "byzantine",
        "budget",
        "batch_size",
        "learning_rate",
        "lr_rule",
        "lr_drop",
        "weight_decay",
        "eval_every",
    ),
    *("precision", "participation", "data", "validation"),
]


@pytest.mark.thorough
def test_the_view_of_final_accuracies_equals_pandas(cells: Engine) -> None:
    with cells.connect() as connection:
        view = (
            pd.read_sql("SELECT * FROM final_accuracy", connection)
            .sort_values(["task", "method"])
            .set_index(CELL)
        )
        runs = pd.read_sql(
            "SELECT * FROM runs WHERE status IN ('finished', 'diverged')", connection
        )
    expected = runs.groupby(CELL, dropna=False).agg(
        n=("id", "size"),
        mean=("final_accuracy", "mean"),
        std=("final_accuracy", lambda values: values.std(ddof=1)),
        mean_gap=("final_gap", "mean"),
        diverged=("status", lambda statuses: (statuses == "diverged").sum()),
        ci_low=("final_accuracy", lambda values: student(values.dropna().tolist()).low),
        ci_high=("final_accuracy", lambda values: student(values.dropna().tolist()).high),
        rule=("aggregator", "first"),  # without a chain
    )
    pd.testing.assert_frame_equal(
        view, expected.sort_index(), check_dtype=False, check_index_type=False, rtol=1e-12
    )
    assert view["n"].tolist() == [1, 3, 4, 2]  # dynabro, momentum and sgd on digits; quadratic
    assert view["diverged"].tolist() == [0, 2, 0, 0]
    assert view["std"].isna().tolist() == [True, False, False, True]


def test_a_cell_is_all_that_the_numbers_depend_on_but_the_seed(
    engine: Engine, database: str
) -> None:
    changes: list[dict[str, object]] = [{}]
    changes += [{name: 99 if isinstance(RECORD[name], int | float) else "other"} for name in CELL]
    for number, changed in enumerate(changes):
        for seed in (0, 1):
            record(
                engine,
                whole_run(key=f"{number}, seed {seed}", accuracy=number / 64, seed=seed, **changed),
            )
    found = read(database, "SELECT n, mean, std FROM final_accuracy ORDER BY mean")
    assert found == [(2, number / 64, 0) for number in range(len(changes))]


def test_the_interval_of_the_view(engine: Engine, database: str) -> None:
    """A run that diverged counts as guessing, also if it has no accuracy; 35 runs are more than the
    table of quantiles has.
    """
    accuracies = [0.5 + math.sin(seed) / 4 for seed in range(35)]
    for seed, accuracy in enumerate(accuracies):
        record(engine, whole_run(key=f"many{seed}", accuracy=accuracy, seed=seed))
    for seed, value in enumerate([0.25, 0.5, None]):
        end = finished(1, value) if value is not None else diverged(1, None)
        record(engine, [started(f"few{seed}", method="sgd", seed=seed), rounds(0, 1), end])
    found = read(database, "SELECT n, mean, std, ci_low, ci_high FROM final_accuracy ORDER BY n")
    for row, n, values in zip(found, (3, 35), ([0.25, 0.5, 0.1], accuracies), strict=True):
        assert row == pytest.approx(
            (n, np.mean(values), np.std(values, ddof=1), *student(values)), rel=1e-6
        )


@pytest.mark.thorough
def test_the_view_of_byzantine_counts_equals_pandas(cells: Engine) -> None:
    with cells.connect() as connection:
        view = pd.read_sql("SELECT * FROM byzantine_histogram", connection)
        rows = pd.read_sql("SELECT run_id, byzantine FROM rounds", connection)
    expected = rows.groupby(["run_id", "byzantine"]).size().reset_index(name="rounds")
    pd.testing.assert_frame_equal(
        view.sort_values(["run_id", "byzantine"], ignore_index=True), expected
    )
    assert len(view) > 20
