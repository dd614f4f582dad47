"""A database that something removes, replaces or empties while it is open for writing."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine

from dynabro_cli.core.errors import BusyError, LostDatabaseError
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.open.files import PinnedFile, file_version
from dynabro_cli.runs.store.ownership import heartbeats
from dynabro_cli.runs.store.write.recorder import Recorder
from tests.runs.store.made import KEY, change, finished, read, record, rounds, started, whole_run

OTHER = "cd" * 32


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another database, with another run."""
    path = tmp_path / "other.db"
    engine = open_for_writing(str(path))
    record(engine, whole_run(key=OTHER))
    engine.dispose()
    return path


def remove(path: Path, other: Path) -> None:
    path.unlink()


def replace(path: Path, other: Path) -> None:
    shutil.copy(other, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)


@pytest.mark.parametrize("accident", [remove, replace])
def test_what_happens_to_the_file_is_told_and_nothing_is_made(
    accident: Callable[[Path, Path], None], path: Path, other: Path
) -> None:
    engine = open_for_writing(str(path))
    recorder = record(engine, [started(), rounds(0, 3)])
    accident(path, other)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(
        LostDatabaseError,
        match=f"{path.name} was removed or replaced while this command was writing it",
    ):
        recorder.record(finished(4))
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize("accident", [remove, replace])
def test_what_happens_in_a_transaction_is_told_before_it_counts(
    accident: Callable[[Path, Path], None], path: Path, other: Path
) -> None:
    engine = open_for_writing(str(path))
    with engine.connect() as connection:
        transaction = connection.begin()
        connection.exec_driver_sql("UPDATE runs SET seed = 1")
        accident(path, other)
        with pytest.raises(LostDatabaseError):
            transaction.commit()


def test_heartbeats_make_no_database(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNABRO_LEASE_SECONDS", "0.1")
    engine = open_for_writing(str(path))
    recorder = record(engine, [started()])
    path.unlink()
    tried: list[object] = []
    connect = sqlite3.connect

    def note(*words: object, **settings: object) -> object:
        tried.append(words)
        return connect(*words, **settings)  # type: ignore[call-overload]

    checked: list[None] = []
    check = PinnedFile.check

    def counted(self: PinnedFile) -> None:
        checked.append(None)
        check(self)

    monkeypatch.setattr(sqlite3, "connect", note)
    monkeypatch.setattr(PinnedFile, "check", counted)
    with heartbeats(engine, [recorder.owner]):
        while len(checked) < 3:
            assert not path.exists()
    assert tried == []
    assert not path.exists()


def test_another_database_copied_over_the_file_is_not_written(path: Path, other: Path) -> None:
    engine = open_for_writing(str(path))
    recorder = record(engine, [started(), rounds(0, 3)])
    path.write_bytes(other.read_bytes())  # the same file, as of `cp`
    before = read(path, "SELECT run_key, rounds FROM runs")
    with pytest.raises(
        LostDatabaseError, match=r"run 1 is not in .*results.db any more: .*Try: repeat the command"
    ):
        recorder.record(finished(4))
    assert read(path, "SELECT run_key, rounds FROM runs") == before == [(OTHER, 3)]


def test_a_run_that_was_removed_is_not_taken_for_one_that_was_taken_over(
    engine: Engine, database: str
) -> None:
    recorder = record(engine, [started(), rounds(0, 3)])
    change(database, "DELETE FROM runs")
    with pytest.raises(
        LostDatabaseError, match="the run was removed, or the database was replaced"
    ):
        recorder.record(finished(4))
    assert recorder.run_id is None
    recorder.interrupted()
    assert read(database, "SELECT * FROM runs") == []


def test_a_repetition_that_was_taken_over_and_has_ended_is_no_lost_database(
    engine: Engine, database: str
) -> None:
    record(engine, whole_run())
    first = record(engine, [started(), rounds(0, 1)])
    # as its successor takes the result's place
    change(database, f"DELETE FROM runs WHERE run_key <> '{KEY}'")
    with pytest.raises(BusyError, match="was taken over by another process"):
        first.record(finished(2))


def test_a_file_that_is_renamed_and_put_back_is_the_same(path: Path) -> None:
    engine = open_for_writing(str(path))
    recorder = Recorder(engine)
    recorder.record(started())
    path.rename(path.with_name("away.db"))
    with pytest.raises(LostDatabaseError):
        Recorder(engine).record(started(OTHER))
    path.with_name("away.db").rename(path)
    for event in (rounds(0, 3), finished(4)):
        recorder.record(event)
    assert read(path, "SELECT status, rounds FROM runs") == [("finished", 4)]


def test_a_link_to_the_file_is_the_file(path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    engine = open_for_writing(str(link))
    record(engine, whole_run())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT status FROM runs").fetchall() == [("finished",)]
    link.unlink()
    with pytest.raises(LostDatabaseError, match=r"link\.db was removed"):
        record(engine, whole_run(key=OTHER))


WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("UPDATE runs SET error = 'of another process'")
connection.commit()
connection.close()
"""


@pytest.mark.parametrize(
    "look",
    [
        lambda path, pinned: pinned.check(),
        lambda path, pinned: pinned.connect().close(),
        lambda path, pinned: file_version(path),
    ],
    ids=["check", "connect", "file_version"],
)
def test_looking_at_the_file_leaves_the_locks_of_an_open_connection(
    look: Callable[[Path, PinnedFile], object], tmp_path: Path
) -> None:
    """Without them, the next process that closes the database removes the log that this one writes
    to.
    """
    path = tmp_path / "results.db"
    record(open_for_writing(str(path)), whole_run())
    pinned = PinnedFile(path, 5)
    with closing(pinned.connect()) as connection:
        connection.execute("UPDATE runs SET host = 'before'")
        connection.commit()
        log = path.with_name("results.db-wal").stat().st_ino
        look(path, pinned)
        subprocess.run([sys.executable, "-c", WRITER, str(path)], check=True)
        assert path.with_name("results.db-wal").stat().st_ino == log
        connection.execute("UPDATE runs SET host = 'after'")
        connection.commit()
        assert read(path, "SELECT host, error FROM runs") == [("after", "of another process")]
