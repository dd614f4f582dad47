"""``dynabro db``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Dynabro
from tests.store.made import change, read


def test_nothing_to_upgrade(dynabro: Dynabro, results: Path) -> None:
    before = results.read_bytes()
    outcome = dynabro("db", "upgrade")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "results.db has schema version 2 already; nothing to do\n"
    assert results.read_bytes() == before


def test_an_older_database_is_upgraded_and_its_runs_are_found(dynabro: Dynabro, results: Path) -> None:
    """Made old again by hand, as tests/store/test_engine.py shows it to have been."""
    spec = (
        "run",
        "--model",
        "logistic",
        "--method",
        "sgd",
        "--switching",
        "periodic:K=4",
        "--budget",
        "40",
        "--eval-every",
        "10",
    )
    (key,) = read(results, "SELECT run_key FROM runs WHERE id = 1")[0]
    (view,) = read(results, "SELECT sql FROM sqlite_master WHERE name = 'final_accuracy'")[0]
    change(results, "DROP VIEW final_accuracy")
    change(results, "ALTER TABLE runs DROP COLUMN precision")
    change(results, view.replace(", precision", "").replace("AS diverged,\n               precision", "AS diverged"))
    change(results, "UPDATE alembic_version SET version_num = '0001'")
    change(results, "PRAGMA user_version = 1")

    for command in (spec, ("runs",), ("show", "runs/1"), ("export", "final", "--csv", "-")):
        outcome = dynabro(*command)
        assert (outcome.code, outcome.out) == (65, "")
        assert outcome.problems == [
            "results.db has schema version 1, and this dynabro needs 2; type dynabro db upgrade --db results.db"
        ]
    outcome = dynabro("db", "upgrade", "--db", "results.db")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "results.db upgraded from schema version 1 to 2; the old one is results.db.v1\n"
    assert json.loads(dynabro("show", "runs/1", "--json").out)["precision"] == "fp32"
    assert read(results, "SELECT run_key FROM runs WHERE id = 1") == [(key,)]
    for precision in ((), ("--precision", "fp32")):
        assert "run 1, already in results.db" in dynabro(*spec, *precision).out


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
