"""Rows whose values do not fit their columns' types are hidden, and a change of the file is seen at the next connection."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dynabro_cli.store.open.engine import open_read_only
from dynabro_cli.store.read.queries import count_runs
from tests.store.made import change

EXAMPLE = Path(__file__).parents[2] / "results.db.example"
OLD = 10**9


@pytest.fixture
def results(tmp_path: Path) -> Path:
    shutil.copy(EXAMPLE, tmp_path / "r.db")
    return tmp_path / "r.db"


def test_a_change_is_looked_at_whatever_its_time_says(results: Path) -> None:
    os.utime(results, ns=(OLD, OLD))
    before = count_runs(open_read_only(str(results)))
    change(results, "UPDATE runs SET wall_seconds = 'x' WHERE id = 1")
    os.utime(results, ns=(OLD, OLD))
    assert count_runs(open_read_only(str(results))) == before - 1
    assert count_runs(open_read_only(str(results), any_row=True)) == before


def test_what_is_in_the_write_ahead_log_is_looked_at(results: Path) -> None:
    with closing(sqlite3.connect(results, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        before = count_runs(open_read_only(str(results)))
        writer.execute("UPDATE runs SET wall_seconds = 'x' WHERE id = 1")
        assert count_runs(open_read_only(str(results))) == before - 1
        writer.execute("UPDATE runs SET wall_seconds = 1 WHERE id = 1")
        assert count_runs(open_read_only(str(results))) == before
