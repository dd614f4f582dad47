"""``dynabro db``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Dynabro


def test_nothing_to_upgrade(dynabro: Dynabro, results: Path) -> None:
    before = results.read_bytes()
    outcome = dynabro("db", "upgrade")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "results.db has schema version 1 already; nothing to do\n"
    assert results.read_bytes() == before


@pytest.mark.parametrize(
    ("database", "code", "problem"),
    [
        ("missing.db", 66, "there is no database missing.db"),
        ("notes.txt", 65, "notes.txt"),
        ("sqlite://", 65, "names no file"),
    ],
)
def test_what_cannot_be_upgraded(database: str, code: int, problem: str, dynabro: Dynabro, folder: Path) -> None:
    (folder / "notes.txt").write_text("not a database\n")
    outcome = dynabro("db", "upgrade", "--db", database)
    assert (outcome.code, outcome.out) == (code, "")
    (line,) = outcome.problems
    assert problem in line
    assert [item.name for item in folder.iterdir()] == ["notes.txt"]


def test_an_unknown_command(dynabro: Dynabro) -> None:
    outcome = dynabro("db", "upgrad")
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.problems
    assert "upgrad" in line
