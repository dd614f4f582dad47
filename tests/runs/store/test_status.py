"""What a database says of its sweeps and runs in progress."""

from __future__ import annotations

import contextlib
import datetime as dt
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Engine

from dynabro_cli.core.errors import BusyError, NotFoundError
from dynabro_cli.core.events import Totals
from dynabro_cli.experiment import label
from dynabro_cli.runs.store import ownership
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.read.status import gist, read_status
from dynabro_cli.runs.store.write.recorder import Recorder
from dynabro_cli.runs.store.write.standing import Standing
from dynabro_cli.runs.store.write.sweep_entry import SweepEntry
from tests.runs.store.made import (
    KEY,
    RECORD,
    a_round,
    both,
    change,
    evaluated,
    read,
    record,
    rounds,
    started,
    whole_run,
)
from tests.runs.store.test_sweep_entry import gone
from tests.tables import each_row

OTHERS = [letter * 64 for letter in "bcdef"]


MADE = (KEY, *OTHERS[:3], "1" * 64)
"""The runs that a sweep of six makes, as one was stored before."""


def entry(
    engine: Engine, name: str = "small", runs: int = 6, made: Sequence[str] = MADE
) -> SweepEntry:
    return SweepEntry(
        engine,
        name=name,
        runs=runs,
        listed=dict.fromkeys(made),
        jobs=2,
        executor="local",
        stored_before=runs - len(made),
    )


@contextlib.contextmanager
def half_way(engine: Engine, key: str = KEY, sweep: str | None = "small", **columns: object):  # type: ignore[no-untyped-def]
    """A run of which 20 of 50 rounds are stored."""
    recorder = Recorder(engine, sweep=sweep)
    recorder.record(started(key, **columns))
    recorder.record(rounds(0, 19))
    recorder.record(evaluated(20, 0.25))
    recorder._commit({})
    yield recorder
    recorder.interrupted()


def test_an_empty_database(engine: Engine, database: str) -> None:
    now = read_status(database)
    assert (now.sweeps, now.dead_sweeps, now.other_runs, now.counts, now.failures) == (
        (),
        (),
        (),
        {},
        (),
    )
    assert now.last_sweep is None


@both
def test_a_sweep_in_progress(engine: Engine, database: str) -> None:
    record(engine, whole_run(key=OTHERS[4]), sweep="small")  # before
    record(engine, whole_run(key=OTHERS[3]), sweep="other")
    with entry(engine), half_way(engine) as recorder:
        record(engine, whole_run(key=OTHERS[0]), sweep="small")
        record(engine, [started(OTHERS[1])], sweep="small").failed("bang")
        record(engine, [started(OTHERS[2])], sweep="small").interrupted()
        (sweep,) = read_status(database).sweeps
        assert (sweep.name, sweep.status, sweep.jobs, sweep.executor, sweep.dead) == (
            "small",
            "running",
            2,
            "local",
            False,
        )
        assert (sweep.runs, sweep.stored_before, sweep.finished, sweep.failed, sweep.to_go) == (
            6,
            1,
            1,
            1,
            2,
        )
        (run,) = sweep.in_progress
        assert (run.run_key, run.budget, run.budget_spent, run.rounds) == (KEY, 50, 20, 20)
        assert (run.id, run.accuracy, run.gap, run.byzantine_now, run.dead) == (
            recorder.run_id,
            0.25,
            None,
            8,
            False,
        )
        assert run.run == "digits, momentum:beta=0.99, cwtm, sf, periodic:K=20, seed 3"
        assert read_status(database).other_runs == ()
    now = read_status(database)
    assert now.sweeps == ()
    assert now.counts == {"finished": 3, "failed": 1, "interrupted": 2}
    assert now.last_sweep is not None
    assert (now.last_sweep.name, now.last_sweep.status, now.last_sweep.finished) == (
        "small",
        "finished",
        1,
    )


@both
def test_the_time_to_go(engine: Engine, database: str) -> None:
    """So far: 50 of a finished run, 20 of one in progress, 10 of one that had 10 before; 30, 30 and
    twice 50 are left.
    """
    with entry(engine, runs=5), half_way(engine), half_way(engine, OTHERS[1]) as resumed:
        record(engine, whole_run(50, key=OTHERS[0]), sweep="small")
        assert read_status(database).sweeps[0].to_go == 2
        change(database, "UPDATE sweeps SET started_at = '2026-01-01 00:00:00'")
        change(database, "UPDATE runs SET wall_seconds = 50")
        (sweep,) = read_status(database).sweeps
        assert sweep.elapsed > 100
        change(
            database,
            "UPDATE runs SET wall_seconds = ? WHERE id = ?",
            2 * sweep.elapsed,
            resumed.run_id,
        )
        (sweep,) = read_status(database).sweeps
        assert sweep.seconds_to_go == pytest.approx(160 * sweep.elapsed / 80, rel=1e-3)


def test_no_time_to_go_without_a_speed(engine: Engine, database: str) -> None:
    with entry(engine):
        assert read_status(database).sweeps[0].seconds_to_go is None


def test_the_last_round_and_evaluation_count(engine: Engine, database: str) -> None:
    with entry(engine), half_way(engine) as recorder:
        recorder.record(evaluated(40, 0.75))
        recorder.record(type(rounds(0, 0))((a_round(20, byzantine=3),), Totals(21, 21, 0, 0)))
        recorder._commit({})
        (run,) = read_status(database).sweeps[0].in_progress
        assert (run.accuracy, run.byzantine_now, run.rounds) == (0.75, 3, 21)


def test_a_run_without_a_round(engine: Engine, database: str) -> None:
    record(engine, [started()])
    (run,) = read_status(database).other_runs
    assert (run.accuracy, run.gap, run.byzantine_now, run.rounds) == (None, None, None, 0)


def test_runs_of_other_processes_are_not_the_sweeps(engine: Engine, database: str) -> None:
    with entry(engine), half_way(engine) as other:
        change(database, "UPDATE runs SET owner = ?", "elsewhere:1:2:3")
        now = read_status(database)
        assert [run.id for run in now.other_runs] == [other.run_id]
        assert now.sweeps[0].in_progress == ()
        change(database, "UPDATE runs SET owner = ?", other.owner)


@both
def test_what_looks_dead(engine: Engine, database: str) -> None:
    with entry(engine), half_way(engine) as recorder:
        change(database, "UPDATE runs SET owner = ?", gone())
        change(database, "UPDATE sweeps SET owner = ?", gone())
        now = read_status(database)
        assert now.sweeps == ()
        assert [(sweep.name, sweep.seconds_to_go) for sweep in now.dead_sweeps] == [("small", None)]
        assert [(run.id, run.dead) for run in now.other_runs] == [(recorder.run_id, True)]
        change(database, "UPDATE runs SET owner = ?", recorder.owner)
    with entry(engine):  # which goes on with it
        now = read_status(database)
        assert len(now.sweeps) == 1
        assert now.dead_sweeps == ()
    assert read_status(database).dead_sweeps == ()


@both
def test_a_sweep_counts_the_runs_on_its_list_whatever_the_clock_says(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one during which the clock was set back, or of which another command made a run under
    another name.
    """
    with entry(engine):
        monkeypatch.setattr(ownership, "database_time", lambda connection: dt.datetime(2020, 1, 1))
        for key in MADE[:3]:
            record(engine, whole_run(key=key), sweep="small")
        monkeypatch.undo()
        record(engine, whole_run(key=MADE[3]), sweep="other")
        record(engine, [started(MADE[4])], sweep="small").failed("bang")
        (sweep,) = read_status(database).sweeps
        assert (sweep.finished, sweep.failed, sweep.to_go) == (4, 1, 0)
    last = read_status(database).last_sweep
    assert last is not None
    assert (last.finished, last.failed, last.to_go) == (4, 1, 0)


def test_what_a_sweep_makes_again_counts_when_it_is_made_again(
    engine: Engine, database: str
) -> None:
    for key in MADE[:2]:
        record(engine, [started(key)]).failed("bang")
    record(engine, whole_run(key=MADE[2]))
    with engine.connect() as connection:
        before = dict(Standing(connection).to_make(MADE, retry_failed=True))
    ((ended,),) = read(database, f"SELECT finished_at FROM runs WHERE run_key = '{MADE[2]}'")
    before[MADE[2]] = dt.datetime.fromisoformat(str(ended))  # as of a sweep that repeats results
    with SweepEntry(
        engine, name="small", runs=6, listed=before, jobs=2, executor="local", stored_before=1
    ):
        assert [
            (sweep.finished, sweep.failed, sweep.to_go) for sweep in read_status(database).sweeps
        ] == [(0, 0, 5)]
        record(engine, [started(MADE[0])]).failed("again")
        record(engine, [started(MADE[2]), rounds(0, 1)]).failed("the repetition")
        assert [
            (sweep.finished, sweep.failed, sweep.to_go) for sweep in read_status(database).sweeps
        ] == [(0, 2, 3)]
        for key in MADE[:3]:
            record(engine, whole_run(key=key))
        assert [
            (sweep.finished, sweep.failed, sweep.to_go) for sweep in read_status(database).sweeps
        ] == [(3, 0, 2)]


def test_the_last_sweep_is_the_last_whatever_the_clock_says(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with entry(engine, "first"):
        pass
    monkeypatch.setattr(ownership, "database_time", lambda connection: dt.datetime(2020, 1, 1))
    with entry(engine, "second"):
        pass
    last = read_status(database).last_sweep
    assert last is not None
    assert last.name == "second"


def test_failures_newest_first_in_a_line(engine: Engine, database: str) -> None:
    for number in range(7):
        record(engine, [started(f"{number}" * 64, seed=number)]).failed(
            f"number {number}\nand more"
        )
    failures = read_status(database).failures
    assert [run.error for run in failures] == [f"number {number}" for number in (6, 5, 4, 3, 2)]
    assert failures[0].run.endswith("seed 6")


@each_row(
    ("error", "line"),
    [
        ("no such data", "no such data"),
        ("workers=0 is not legal\nbudget=0 is not legal", "workers=0 is not legal"),
        (
            (
                'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    '
                "g()\nValueError: bang\n"
            ),
            "ValueError: bang",
        ),
        ('n f\n  File "a.py", line 1, in f\nValueError: cut', "ValueError: cut"),
        ("", ""),
    ],
)
def test_the_gist_of_an_error(error: str, line: str) -> None:
    assert gist(error) == line


def test_runs_whose_words_are_the_same_are_told_apart(engine: Engine, database: str) -> None:
    with (
        half_way(engine),
        half_way(engine, OTHERS[0], learning_rate=0.1),
        half_way(engine, OTHERS[1], seed=4),
    ):
        told = [run.run.partition("seed ")[2] for run in read_status(database).other_runs]
    assert told == ["3, learning_rate=0.01", "3, learning_rate=0.1", "4, learning_rate=0.01"]


def test_reading_leaves_a_writer_alone(path: Path) -> None:
    engine = open_for_writing(str(path))
    with entry(engine), half_way(engine):
        with engine.begin() as connection:  # a writer in the middle of a transaction
            connection.exec_driver_sql("UPDATE runs SET rounds = 99")
            assert read_status(str(path), patience=0.01).sweeps[0].in_progress[0].rounds == 20
        assert read_status(str(path)).sweeps[0].in_progress[0].rounds == 99
        # no reader holds it up afterwards
        with contextlib.closing(sqlite3.connect(path, timeout=0)) as checkpointer:
            assert checkpointer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


def test_a_locked_database_is_waited_for_no_longer_than_asked(path: Path) -> None:
    open_for_writing(str(path))
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BusyError):
            read_status(str(path), patience=0.01)


def test_no_database(path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_status(str(path))


def test_columns_that_tell_runs_apart_are_those_of_a_start() -> None:
    assert {*label.CELL, *label.OTHERS} <= set(RECORD)
