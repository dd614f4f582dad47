"""The cache of files whose runs are all readable."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dynabro_cli.store.open import connections
from dynabro_cli.store.open import connections as readable
from dynabro_cli.store.open.engine import open_read_only
from dynabro_cli.store.read.queries import count_runs
from tests.store.made import change

EXAMPLE = Path(__file__).parents[2] / "results.db.example"
OLD = 10**9


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database that has not changed for a long time, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(readable, "RECENT_SECONDS", -1)
    shutil.copy(EXAMPLE, tmp_path / "r.db")
    return tmp_path / "r.db"


def looks(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Open the database as another process would, and return how often its runs are looked at."""
    found: list[object] = []
    look = connections._all_readable
    monkeypatch.setattr(connections, "_ALL_READABLE", {})
    monkeypatch.setattr(connections, "_all_readable", lambda *arguments: (found.append(1), look(*arguments))[1])
    count_runs(open_read_only(str(path)))
    monkeypatch.setattr(connections, "_all_readable", look)
    return len(found)


def test_another_process_does_not_look_again(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(results, monkeypatch) == 1
    assert looks(results, monkeypatch) == 0


def test_a_change_is_looked_at_whatever_its_time_says(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(results, ns=(OLD, OLD))
    looks(results, monkeypatch)
    change(results, "UPDATE runs SET wall_seconds = 'x' WHERE id = 1")
    os.utime(results, ns=(OLD, OLD))
    before = count_runs(open_read_only(str(results), any_row=True))
    assert looks(results, monkeypatch) == 1
    assert looks(results, monkeypatch) == 1  # what has an unreadable run is not remembered
    assert count_runs(open_read_only(str(results))) == before - 1


def test_what_is_in_the_write_ahead_log_is_looked_at(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(results, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        looks(results, monkeypatch)
        assert looks(results, monkeypatch) == 0
        writer.execute("UPDATE runs SET wall_seconds = 'x' WHERE id = 1")
        assert looks(results, monkeypatch) == 1
        writer.execute("UPDATE runs SET wall_seconds = 1 WHERE id = 1")
        assert looks(results, monkeypatch) == 1
        assert looks(results, monkeypatch) == 1  # a file that is being written is not remembered


def test_what_has_just_changed_is_not_remembered(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable, "RECENT_SECONDS", 1000)
    assert looks(results, monkeypatch) == 1
    assert looks(results, monkeypatch) == 1


def test_a_cache_that_cannot_be_read_or_written_costs_time_only(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (results.parent / "cache").write_text("a file")
    assert looks(results, monkeypatch) == 1
    assert looks(results, monkeypatch) == 1
    (results.parent / "cache").unlink()
    looks(results, monkeypatch)
    (place,) = (results.parent / "cache" / "dynabro" / "readable").iterdir()
    place.write_text("{")
    assert looks(results, monkeypatch) == 1
