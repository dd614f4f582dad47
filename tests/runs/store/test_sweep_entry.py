"""The row of a sweep: what it says while the sweep goes on, how it ends, and that it shows when its
process is gone.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import threading
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from dynabro_cli.core.errors import BusyError, InterruptedRunError, PreemptedError, RunError
from dynabro_cli.runs.store import ownership
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.ownership import database_time, heartbeats, new_owner, presumed_dead
from dynabro_cli.runs.store.tables import sweeps
from dynabro_cli.runs.store.write.standing import Standing
from dynabro_cli.runs.store.write.sweep_entry import SweepEntry
from tests.runs.store.made import both, change, finished, read, record, started, whole_run


def entry(engine: Engine, name: str = "small", keys: str = "abcde") -> SweepEntry:
    return SweepEntry(
        engine,
        name=name,
        runs=7,
        listed={key * 64: None for key in keys},
        jobs=3,
        executor="local",
        stored_before=7 - len(keys),
    )


def gone() -> str:
    """The owner that a process of this machine had that is there no more."""
    machine, pid, _, word = new_owner().split(":")
    return f"{machine}:{pid}:0:{word}"


def is_dead(engine: Engine) -> bool:
    with engine.connect() as connection:
        row = connection.execute(select(sweeps)).mappings().one()
        return presumed_dead(row, database_time(connection))


@both
def test_a_sweep_in_progress_and_finished(engine: Engine, database: str) -> None:
    with entry(engine) as mine:
        (row,) = read(
            database,
            "SELECT name, runs, stored_before, jobs, executor, status, owner, host, pid FROM "
            "sweeps",
        )
        assert row == (
            "small",
            7,
            2,
            3,
            "local",
            "running",
            mine.owner,
            platform.node(),
            os.getpid(),
        )
        assert read(database, "SELECT ended_at FROM sweeps") == [(None,)]
        assert not is_dead(engine)
    with engine.connect() as connection:
        row = connection.execute(select(sweeps)).mappings().one()
    assert row["status"] == "finished"
    assert dt.timedelta(0) <= row["ended_at"] - row["started_at"] < dt.timedelta(minutes=1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InterruptedRunError("Ctrl-C"), "interrupted"),
        (PreemptedError("SIGTERM"), "interrupted"),
        (KeyboardInterrupt(), "interrupted"),
        (RunError("no worker"), "failed"),
        (ValueError("a bug"), "failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_a_sweep_that_an_error_ends(
    engine: Engine, database: str, error: BaseException, status: str
) -> None:
    with pytest.raises(type(error)), entry(engine):
        raise error
    assert read(database, "SELECT status, ended_at IS NULL FROM sweeps") == [(status, 0)]


@pytest.mark.parametrize(
    "error", [None, InterruptedRunError("Ctrl-C")], ids=["whole", "interrupted"]
)
def test_a_sweep_with_failed_runs(engine: Engine, database: str, error: Exception | None) -> None:
    try:
        with entry(engine) as mine:
            mine.failed = True
            if error is not None:
                raise error
    except InterruptedRunError:
        pass
    assert read(database, "SELECT status FROM sweeps") == [("interrupted" if error else "failed",)]


def test_every_sweep_has_a_row_of_its_own(engine: Engine, database: str) -> None:
    with entry(engine, "outer") as outer, entry(engine, "inner") as inner:
        assert outer.owner != inner.owner
        inner.failed = True
    assert sorted(read(database, "SELECT name, status FROM sweeps")) == [
        ("inner", "failed"),
        ("outer", "finished"),
    ]


@both
def test_heartbeats_keep_it_alive(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process cannot be looked at from another machine, so only its last sign of life counts
    there.
    """
    monkeypatch.setenv("DYNABRO_LEASE_SECONDS", "0.2")
    with entry(engine) as mine:
        mine.owner = "elsewhere:1:2:3"
        old = "heartbeat_at = '2020-01-01 00:00:00', heartbeat_clock = NULL"
        change(database, f"UPDATE sweeps SET owner = '{mine.owner}', {old}")
        assert is_dead(engine)
        with heartbeats(engine, [mine.owner]):
            while read(
                database, "SELECT COUNT(*) FROM sweeps WHERE heartbeat_at < '2021-01-01'"
            ) != [(0,)]:
                threading.Event().wait(0.01)
        monkeypatch.setenv("DYNABRO_LEASE_SECONDS", "60")
        assert not is_dead(engine)


def test_one_whose_process_is_gone_is_dead(engine: Engine, database: str) -> None:
    with entry(engine):
        assert not is_dead(engine)
        change(database, "UPDATE sweeps SET owner = ?", gone())
        assert is_dead(engine)
    # whose row it is not writes nothing
    assert read(database, "SELECT status FROM sweeps") == [("running",)]


def test_an_end_that_cannot_be_written_is_no_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_for_writing(str(path))
    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "0.01")
    with engine.connect() as other:
        other.rollback()
        with entry(engine):
            other.begin()  # which locks out every other writer
        other.rollback()
    assert read(path, "SELECT status FROM sweeps") == [("running",)]


def test_a_beginning_that_cannot_be_written_is_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_for_writing(str(path))
    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "0.01")
    with engine.begin(), pytest.raises(BusyError), entry(engine):
        pass
    assert read(path, "SELECT * FROM sweeps") == []


def test_what_is_to_be_made(engine: Engine) -> None:
    keys = {name: name * 64 for name in "abcd"}
    record(engine, [started(keys["a"]), finished(1)])
    record(engine, whole_run(key=keys["b"]))
    record(engine, [started(keys["c"])]).failed("bang")
    record(engine, [started(keys["d"])]).interrupted()
    with engine.connect() as connection:
        standing = Standing(connection)
    asked = [keys["a"], keys["c"], keys["d"], "e" * 64]
    assert standing.to_make(asked, retry_failed=False) == {keys["d"]: None, "e" * 64: None}
    again = standing.to_make(asked, retry_failed=True)
    assert list(again) == [keys["c"], keys["d"], "e" * 64]
    assert [when is None for when in again.values()] == [False, True, True]
    assert standing.to_make([], retry_failed=False) == {}


@both
def test_the_runs_of_a_sweep_are_listed_and_those_of_its_former_times_are_not(
    engine: Engine, database: str
) -> None:
    with entry(engine, keys="ab"), entry(engine, "other", keys="c"):
        pass
    # of which another process could be making one
    with entry(engine, keys="b") as live, entry(engine, keys="a"):
        assert live.owner
    change(database, "UPDATE sweeps SET status = 'running', owner = ? WHERE id = 3", gone())
    with entry(engine, keys="b"):
        pass
    listed = read(
        database, "SELECT sweep_id, run_key, ended_before FROM sweep_runs ORDER BY sweep_id"
    )
    assert listed == [(2, "c" * 64, None), (5, "b" * 64, None)]


def test_those_of_a_live_namesake_stay(engine: Engine, database: str) -> None:
    with entry(engine, keys="ab"), entry(engine, keys="b"):
        assert read(
            database, "SELECT sweep_id, COUNT(*) FROM sweep_runs GROUP BY sweep_id ORDER BY 1"
        ) == [(1, 2), (2, 1)]


def test_how_long_it_takes_is_measured_by_a_clock_that_nobody_sets(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([dt.datetime(2026, 1, 1, 12), dt.datetime(2026, 1, 1, 11)])
    monkeypatch.setattr(ownership, "database_time", lambda connection: next(moments))
    with entry(engine):
        pass
    ((seconds, backwards),) = read(
        database, "SELECT wall_seconds, ended_at < started_at FROM sweeps"
    )
    assert 0 <= seconds < 60
    assert backwards
