"""``dynabro runs``."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Dynabro
from tests.real_runs import SPECS
from tests.store.made import read

COLUMNS = ["id", "status", "task", "model", "method", "seed", "rounds", "final_accuracy", "final_gap", "wall_seconds"]


def test_a_line_a_run(dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro("runs")
    assert (outcome.code, outcome.err) == (0, "")
    header, rule, *lines = outcome.out.splitlines()
    assert set(rule) == {"-", " "}
    assert len(lines) == len(SPECS)
    for line, spec in zip(lines, SPECS, strict=True):
        row = dict(zip(header.split(), line.split(), strict=True))
        assert (row["task"], row["method"], row["seed"]) == (spec.task, spec.method, str(spec.seed))
        assert row["status"] == "finished"
        assert row["final_accuracy" if spec.task == "quadratic" else "final_gap"] == "-"


def test_json_and_csv_are_exact(dynabro: Dynabro, results: Path) -> None:
    expected = [dict(zip(COLUMNS, row, strict=True)) for row in read(results, f"SELECT {', '.join(COLUMNS)} FROM runs")]
    from_json = json.loads(dynabro("runs", "--json").out)
    assert [{name: row[name] for name in COLUMNS} for row in from_json] == expected
    from_csv = list(csv.DictReader(io.StringIO(dynabro("runs", "--csv").out)))
    as_text = [{name: "" if value is None else str(value) for name, value in row.items()} for row in expected]
    assert [{name: row[name] for name in COLUMNS} for row in from_csv] == as_text


def test_a_condition(dynabro: Dynabro, results: Path) -> None:
    found = json.loads(dynabro("runs", "--where", "method = 'sgd' OR task = 'quadratic'", "--json").out)
    assert [row["id"] for row in found] == [1, 2, 7]
    assert json.loads(dynabro("runs", "--where", "seed > 1", "--json").out) == []
    assert dynabro("runs", "--where", "seed > 1").out.splitlines()[0].split()[:2] == ["id", "status"]


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("--where", "nosuch = 1"), 2, "SQL: no such column: nosuch"),
        (("--where", "seed ="), 2, "SQL: "),
        (("--json", "--csv"), 2, "--json and --csv exclude each other"),
        (("--db", "missing.db"), 66, "there is no database missing.db; type 'dynabro run' to make one"),
        (("--db", "notes.txt"), 65, "notes.txt is not a dynabro database"),
        (("--db", "sqlite://"), 65, "names no file"),
        (("everything",), 2, "everything"),
    ],
)
def test_what_is_wrong_is_a_line(arguments: tuple[str, ...], code: int, problem: str, dynabro: Dynabro, results: Path) -> None:
    results.with_name("notes.txt").write_text("not a database\n")
    outcome = dynabro("runs", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    (line,) = outcome.problems
    assert problem in line
    assert not results.with_name("missing.db").exists()


def test_the_environment_names_the_database(dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNABRO_DB", str(results.rename(results.with_name("other.db"))))
    assert len(json.loads(dynabro("runs", "--json").out)) == len(SPECS)
