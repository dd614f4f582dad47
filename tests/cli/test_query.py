"""``dynabro query``."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sqlite3
import statistics
from pathlib import Path

import pandas as pd
import pytest

from dynabro_cli.runs.store.views import VIEW_COLUMNS
from tests.cli.conftest import Dynabro
from tests.runs.store.made import read
from tests.runs.store.older_views import OF_1_0

EXAMPLE = Path(__file__).parents[2] / "results.db.example"

SQL = "SELECT id, method, model, final_accuracy FROM runs ORDER BY seed DESC, id"


def test_a_table_for_people(dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro("query", SQL)
    assert (outcome.code, outcome.err) == (0, "")
    header, _, *lines = outcome.out.splitlines()
    assert header.split() == ["id", "method", "model", "final_accuracy"]
    expected = read(results, SQL)
    shown = [[str(a), b, c or "-", "-" if d is None else f"{d:.4g}"] for a, b, c, d in expected]
    assert [line.split() for line in lines] == shown
    starts = [line.index(row[1]) for line, row in zip(lines, shown, strict=True)]
    assert set(starts) == {header.index("method")}


def test_json_and_csv_are_exact(dynabro: Dynabro, results: Path) -> None:
    expected = read(results, SQL)
    from_json = json.loads(dynabro("query", SQL, "--json").out)
    assert [tuple(row.values()) for row in from_json] == expected
    header, *from_csv = csv.reader(io.StringIO(dynabro("query", SQL, "--csv").out))
    assert header == list(from_json[0])
    assert [(int(a), b, c or None, float(d) if d else None) for a, b, c, d in from_csv] == expected


def test_text_survives_csv_and_json(dynabro: Dynabro, results: Path) -> None:
    text = 'a "quoted", line\nand größe ☃'
    sql = f"SELECT '{text}' AS text, NULL AS none, 1e300 * 10 AS big"
    assert list(csv.reader(io.StringIO(dynabro("query", sql, "--csv").out))) == [
        ["text", "none", "big"],
        [text, "", "1e+301"],
    ]
    assert json.loads(dynabro("query", sql, "--json").out) == [
        {"text": text, "none": None, "big": 1e301}
    ]


def test_cells_of_csv_are_as_they_are_stored(dynabro: Dynabro, results: Path) -> None:
    """A carriage return does not begin a row, and what a spreadsheet may read as a formula is not
    changed.
    """
    cells = ["a", "\r=1+1", "b\r\n=1", "=1+1", "+1", "-1", "@SUM(1)", "\t=1"]
    values = ", ".join(f"(CAST(x'{cell.encode().hex()}' AS TEXT))" for cell in cells)
    out = dynabro("query", f"WITH t(text) AS (VALUES {values}) SELECT text FROM t", "--csv").out
    assert [text for (text,) in csv.reader(io.StringIO(out, newline=""))] == ["text", *cells]
    assert pd.read_csv(io.StringIO(out, newline=""), dtype=str)["text"].tolist() == cells


def test_json_is_json_where_a_number_is_infinite(dynabro: Dynabro, results: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(dynabro("query", "SELECT 9e999 AS big", "--json").out, parse_constant=refuse)


def test_no_rows(dynabro: Dynabro, results: Path) -> None:
    sql = "SELECT id FROM runs WHERE 0"
    assert dynabro("query", sql).out == "id\n--\n"
    assert dynabro("query", sql, "--csv").out == "id\n"
    assert dynabro("query", sql, "--json").out == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (
            ("SELECT 1", "--json", "--csv"),
            2,
            "--json and --csv exclude each other. Try: one of them",
        ),
        (("DELETE FROM runs",), 2, "only reading is allowed here"),
        (("VACUUM INTO 'copy.db'",), 2, "only reading is allowed here"),
        (("SELECT nosuch FROM runs",), 2, "SQL: no such column: nosuch"),
        (("SELEC 1",), 2, "syntax error"),
        (("",), 2, "Try: a SELECT"),
        ((), 2, "SQL"),
        (("SELECT 1", "--db", "missing.db"), 66, "there is no database missing.db"),
    ],
)
def test_what_is_wrong_is_a_line(
    arguments: tuple[str, ...], code: int, problem: str, dynabro: Dynabro, results: Path
) -> None:
    before = read(results, "SELECT * FROM runs")
    outcome = dynabro("query", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    (line,) = outcome.problems
    assert problem in line
    assert read(results, "SELECT * FROM runs") == before
    assert {item.name for item in results.parent.iterdir()} <= {
        "results.db",
        "results.db-wal",
        "results.db-shm",
    }


def test_an_error_in_the_middle_of_the_rows(dynabro: Dynabro, results: Path) -> None:
    lowest = "-9223372036854775807 - 1"  # has no absolute value
    numbers = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 5000)"
    outcome = dynabro(
        "query",
        f"{numbers} SELECT abs(CASE WHEN x = 4000 THEN {lowest} ELSE x END) FROM c",
        "--csv",
    )
    assert outcome.code == 2
    (line,) = outcome.problems
    assert line.startswith("SQL: integer overflow")


def test_what_sqlite_has_no_function_for(dynabro: Dynabro, results: Path) -> None:
    numbers = "(VALUES (4.0), (1), (2), (NULL), (10))"
    sql = (
        f"SELECT median(column1), stddev(column1), quantile(column1, 0.25), "
        f"quantile(column1, 1.5), quantile(column1, NULL) FROM {numbers}"
    )
    expected = [3.0, statistics.stdev([1, 2, 4, 10]), 1.75, None, None]
    (row,) = json.loads(dynabro("query", sql, "--json").out)
    assert list(row.values()) == expected
    nothing = "SELECT median(seed), stddev(1), stddev(seed) FROM runs WHERE id < 0"
    (row,) = json.loads(dynabro("query", nothing, "--json").out)
    assert list(row.values()) == [None] * 3


@pytest.mark.parametrize("view", VIEW_COLUMNS)
def test_the_columns_of_a_view_are_named(view: str, dynabro: Dynabro, results: Path) -> None:
    (line,) = dynabro("query", f"SELECT nosuch FROM {view}").problems
    named = line.removeprefix("SQL: no such column: nosuch. Try: a column: ").split(", ")
    header = dynabro("query", f"SELECT * FROM {view}", "--csv").out.splitlines()[0]
    assert named == header.split(",")


def test_a_column_that_an_older_version_did_not_have(dynabro: Dynabro, results: Path) -> None:
    with contextlib.closing(sqlite3.connect(results)) as connection:
        connection.executescript(f"DROP VIEW final_accuracy; {OF_1_0}")
    (line,) = dynabro("query", "SELECT rule FROM final_accuracy").problems
    assert line.endswith("or another command that writes: it adds the column rule")


def test_thinned_rounds_are_said(dynabro: Dynabro, tmp_path: Path) -> None:
    for words in (
        ["query", "SELECT COUNT(*) FROM rounds WHERE run_id = 1"],
        ["export", "rounds", "--where", "id = 1", "--csv", str(tmp_path / "rounds.csv")],
    ):
        outcome = dynabro(*words, "--db", str(EXAMPLE))
        assert outcome.code == 0
        assert "runs are thinned: the table rounds has a part of their rounds" in outcome.err
