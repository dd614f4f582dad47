"""``store.backup``: a copy is one moment's state, whole or not there, and takes nothing's place."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from dynabro_cli.core.errors import (
    CannotWriteError,
    DatabaseError,
    NotFoundError,
    SpecError,
    StorageError,
)
from dynabro_cli.runs.store.care import copies
from dynabro_cli.runs.store.care.check import check
from dynabro_cli.runs.store.care.copies import back_up
from dynabro_cli.runs.store.open.engine import open_for_writing
from tests.runs.store import sound
from tests.runs.store.made import change, read, record

ROOT = Path(__file__).parents[3]


@pytest.fixture
def backend() -> str:
    """Files are copied."""
    return "sqlite"


def names(folder: Path) -> set[str]:
    return {item.name for item in folder.iterdir() if not item.name.endswith(("-wal", "-shm"))}


def test_a_copy_has_the_time_in_its_name_and_what_is_committed_in_it(
    engine: Engine, path: Path
) -> None:
    record(engine, sound.run(1))
    with engine.begin() as connection:  # another program writes meanwhile
        connection.exec_driver_sql("UPDATE runs SET final_accuracy = 0.9")
        copy = back_up(str(path))
    assert re.fullmatch(r"results\.db\.[0-9]{8}-[0-9]{6}\.backup", copy.path.name)
    assert names(path.parent) == {"results.db", copy.path.name}
    assert copy.size == copy.path.stat().st_size
    assert check(str(copy.path)).statuses == {"finished": 1}
    assert read(copy.path, "SELECT final_accuracy FROM runs") == [(0.5,)]
    record(open_for_writing(str(copy.path)), sound.run(2))


def test_what_is_in_the_log_only_is_copied(engine: Engine, path: Path, tmp_path: Path) -> None:
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM runs").fetchall()
    record(engine, sound.run(1))  # stays in the write-ahead log while the reader reads
    back_up(str(path), tmp_path / "copy.db")
    reader.close()
    assert read(tmp_path / "copy.db", "SELECT status FROM runs") == [("finished",)]


def test_a_database_of_an_older_schema_is_copied(
    engine: Engine, path: Path, tmp_path: Path
) -> None:
    change(path, "PRAGMA user_version = 1")
    back_up(str(path), tmp_path / "copy.db")
    assert read(tmp_path / "copy.db", "PRAGMA user_version") == [(1,)]


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_nothing_is_overwritten(make: Callable[[Path], None], engine: Engine, path: Path) -> None:
    target = path.with_name("copy.db")
    make(target)
    before = names(path.parent)
    with pytest.raises(CannotWriteError, match="is there already"):
        back_up(str(path), target)
    assert names(path.parent) == before


def test_what_appears_meanwhile_is_not_overwritten(
    engine: Engine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = path.with_name("copy.db")
    monkeypatch.setattr(copies, "failpoint", lambda _: target.write_text("precious"))
    with pytest.raises(CannotWriteError, match="is there already"):
        back_up(str(path), target)
    assert target.read_text() == "precious"
    assert names(path.parent) == {"results.db", "copy.db"}


def test_a_full_disk_leaves_nothing_behind(
    engine: Engine, path: Path, request: pytest.FixtureRequest
) -> None:
    record(engine, sound.run(1))
    engine.dispose()
    before = names(path.parent)
    request.getfixturevalue("_small_files")
    with pytest.raises(StorageError, match="make room") as caught:
        back_up(str(path), path.with_name("copy.db"))
    assert "copy.db" in str(caught.value)
    assert names(path.parent) == before


def test_a_copy_that_cannot_be_forced_to_the_disk(
    engine: Engine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        back_up(str(path), path.with_name("copy.db"))
    assert names(path.parent) == {"results.db"}


def test_a_backup_that_is_killed_leaves_no_file_of_that_name(engine: Engine, path: Path) -> None:
    program = (
        "from sys import argv; from pathlib import Path; from "
        "dynabro_cli.runs.store.care.copies import back_up; "
    )
    program += "back_up(argv[1], Path(argv[2]))"
    target = path.with_name("copy.db")
    command = [sys.executable, "-c", program, str(path), str(target)]
    killed = subprocess.run(
        command, env=os.environ | {"DYNABRO_FAILPOINT": "before-copy=KILL"}, cwd=ROOT, check=False
    )
    assert killed.returncode == -9
    assert not target.exists()
    assert [name for name in names(path.parent) if name.startswith(".dynabro.")]
    back_up(str(path), target)
    assert not [name for name in names(path.parent) if name.startswith(".dynabro.")]


def test_a_missing_folder_is_named(engine: Engine, path: Path) -> None:
    with pytest.raises(CannotWriteError, match="Try: mkdir -p"):
        back_up(str(path), path.parent / "no folder" / "copy.db")


def test_damage_is_told(engine: Engine, path: Path) -> None:
    record(engine, sound.run(1))
    engine.dispose()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
    with pytest.raises(DatabaseError, match="is damaged"):
        back_up(str(path), path.with_name("copy.db"))
    assert names(path.parent) == {"results.db"}


def test_what_is_no_database_is_not_copied(path: Path) -> None:
    with pytest.raises(NotFoundError):
        back_up(str(path))
    path.touch()
    with pytest.raises(DatabaseError, match="empty"):
        back_up(str(path))
    change(path, "CREATE TABLE accounts (name TEXT)")
    with pytest.raises(DatabaseError, match="is not a dynabro database"):
        back_up(str(path))
    assert names(path.parent) == {"results.db"}


def test_a_server_has_its_own() -> None:
    with pytest.raises(SpecError, match="Try: pg_dump, or dynabro db merge"):
        back_up("postgresql+psycopg://me:secret@host/results")
