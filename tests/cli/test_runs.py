"""``dynabro runs``."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from dynabro_cli.runs.store.read import queries
from tests.cli.conftest import Dynabro
from tests.real_runs import SPECS
from tests.runs.store.made import read

COLUMNS = [
    "id",
    "status",
    "task",
    "model",
    "method",
    "seed",
    "rounds",
    "final_accuracy",
    "final_gap",
    "wall_seconds",
]


def test_a_line_a_run_newest_first(dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro("runs")
    assert (outcome.code, outcome.err) == (0, "")
    first, header, rule, *lines = outcome.out.splitlines()
    assert first == "all: status finished"
    assert set(rule) == {"-", " "}
    assert len(lines) == len(SPECS)
    for line, spec in zip(lines, reversed(SPECS), strict=True):
        row = dict(zip(header.split(), line.split(), strict=True))
        assert (row["task"], row["seed"]) == (spec.task, str(spec.seed))
        assert row["accuracy" if spec.task == "quadratic" else "gap"] == "-"


def test_what_all_runs_share_is_said_once(dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro("runs", "--where", "method = 'sgd'")
    first, header, _, *lines = outcome.out.splitlines()
    shared = (
        "all: status finished, task digits, model logistic, method sgd, aggregator cwtm, "
        "attack sf, switching periodic:K=4"
    )
    (rate,) = read(results, "SELECT DISTINCT learning_rate FROM runs WHERE method = 'sgd'")[0]
    assert first == f"{shared}, budget 40, learning_rate {rate:g}"
    assert header.split() == ["id", "seed", "accuracy", "seconds"]
    assert [line.split()[:2] for line in lines] == [["2", "1"], ["1", "0"]]
    assert all(len(line.split()[2]) == len("0.1234") for line in lines)


@pytest.mark.parametrize("width", [60, 80])
def test_a_table_fits_the_terminal(
    width: int, dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = dynabro("runs").out.splitlines()
    assert all(len(line) <= width for line in lines), lines
    for number in range(1, len(SPECS) + 1):  # a line in each part of the table
        assert sum(line.startswith(f"{number} ") for line in lines) == lines.count("") + 1


@pytest.mark.parametrize("width", ["0", "1", "3", "-1", "x"])
def test_any_width_of_a_terminal_is_enough(
    width: str, dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert dynabro("runs").code == 0


@pytest.mark.parametrize("width", [40, 80, 200])
def test_what_differs_is_never_left_out(
    width: int, dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Methods, models, budgets and learning rates are whole."""
    monkeypatch.setenv("COLUMNS", str(width))
    text = " ".join(dynabro("runs").out.split())
    for column in ("method", "model", "switching", "attack"):
        values = [value for (value,) in read(results, f"SELECT DISTINCT {column} FROM runs")]
        assert len(values) > 1
        assert all(str(value) in text for value in values if value is not None), column
    for column in ("budget", "learning_rate"):
        assert all(
            f"{value:g}" in text
            for (value,) in read(results, f"SELECT DISTINCT {column} FROM runs")
        )


def test_a_limit_says_how_many_more_there_are(dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro("runs", "--limit", "2")
    assert [line.split()[0] for line in outcome.out.splitlines()[-2:]] == ["7", "6"]
    assert outcome.err == "5 more runs, older; --limit 7 lists all, --where some\n"
    outcome = dynabro("runs", "--limit", "2", "--where", "id < 4")
    assert outcome.err == "1 more run, older; --limit 3 lists all, --where some\n"
    assert [row["id"] for row in json.loads(dynabro("runs", "--limit", "2", "--json").out)] == [
        7,
        6,
    ]


def test_columns_are_chosen(dynabro: Dynabro, results: Path) -> None:
    header, _, *lines = dynabro("runs", "--columns", "seed, id,host").out.splitlines()
    assert header.split() == ["seed", "id", "host"]
    assert len(lines) == len(SPECS)
    every = json.loads(dynabro("runs", "--json").out)[0]
    assert dynabro("runs", "--columns", "all").out.splitlines()[0].split() == list(every)
    assert list(json.loads(dynabro("runs", "--columns", "id,seed", "--json").out)[0]) == [
        "id",
        "seed",
    ]
    outcome = dynabro("runs", "--columns", "sed")
    assert outcome.code == 2
    assert outcome.problems[0].startswith(
        "columns=sed: not a column of runs (did you mean 'seed'?). Try: id, status, "
    )


def test_only_what_is_printed_is_read(
    dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    real = queries.query
    monkeypatch.setattr(
        queries,
        "query",
        lambda engine, sql, **more: (statements.append(sql), real(engine, sql, **more))[1],
    )
    dynabro("runs", "--limit", "2")
    over_runs = [sql for sql in statements if "FROM runs" in sql]
    assert all("LIMIT 3" in sql or "COUNT(*)" in sql for sql in over_runs)
    assert not any("GROUP BY" in sql or "spec" in sql for sql in over_runs)


def test_json_and_csv_are_exact(dynabro: Dynabro, results: Path) -> None:
    expected = [
        dict(zip(COLUMNS, row, strict=True))
        for row in read(results, f"SELECT {', '.join(COLUMNS)} FROM runs")
    ]
    from_json = json.loads(dynabro("runs", "--json").out)
    assert [{name: row[name] for name in COLUMNS} for row in from_json] == expected
    from_csv = list(csv.DictReader(io.StringIO(dynabro("runs", "--csv").out)))
    as_text = [
        {name: "" if value is None else str(value) for name, value in row.items()}
        for row in expected
    ]
    assert [{name: row[name] for name in COLUMNS} for row in from_csv] == as_text


def test_a_condition(dynabro: Dynabro, results: Path) -> None:
    found = json.loads(
        dynabro("runs", "--where", "method = 'sgd' OR task = 'quadratic'", "--json").out
    )
    assert [row["id"] for row in found] == [1, 2, 7]
    assert json.loads(dynabro("runs", "--where", "seed > 1", "--json").out) == []
    assert dynabro("runs", "--where", "seed > 1").out.splitlines()[0].split()[:2] == [
        "id",
        "status",
    ]
    assert len(dynabro("runs", "--where", "seed = 1").out.splitlines()) == 3 + 3


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("--where", "nosuch = 1"), 2, "SQL: no such column: nosuch"),
        (("--where", "seed ="), 2, "SQL: "),
        (("--json", "--csv"), 2, "--json and --csv exclude each other"),
        (
            ("--db", "missing.db"),
            66,
            "there is no database missing.db. Try: dynabro run, which makes one",
        ),
        (("--db", "notes.txt"), 65, "notes.txt is not a dynabro database"),
        (("--db", "sqlite://"), 65, "names no file"),
        (("everything",), 66, "everything"),
    ],
)
def test_what_is_wrong_is_a_line(
    arguments: tuple[str, ...], code: int, problem: str, dynabro: Dynabro, results: Path
) -> None:
    results.with_name("notes.txt").write_text("not a database\n")
    outcome = dynabro("runs", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    (line,) = outcome.problems
    assert problem in line
    assert not results.with_name("missing.db").exists()


def test_the_environment_names_the_database(
    dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNABRO_DB", str(results.rename(results.with_name("other.db"))))
    assert len(json.loads(dynabro("runs", "--json").out)) == len(SPECS)
