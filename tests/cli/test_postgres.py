"""The command line with a PostgreSQL database: what it gives is what it gives with SQLite."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from tests.cli.conftest import Dynabro
from tests.postgres import allow_connections
from tests.real_runs import fill
from tests.runs.store.made import read
from tests.test_readme import STATEMENTS

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
QUADRATIC = (
    "--task",
    "quadratic",
    "--method",
    "sgd",
    "--attack",
    "shift:lambda=1",
    "--aggregator",
    "cwmed",
    "--budget",
    "20",
)
DIGITS = (
    "--task",
    "digits",
    "--model",
    "logistic",
    "--budget",
    "20",
    "--eval-every",
    "10",
    "--threads",
    "1",
)
SWEEP = (
    "{name: small, base: {task: quadratic, budget: 20}, grid: {method: [sgd, momentum]}, "
    "seeds: 0..1}"
)
TIMES = {"started_at", "finished_at", "wall_seconds", "heartbeat_at", "owner", "pid"}


@pytest.fixture
def both(postgres: str, folder: Path) -> tuple[str, str]:
    """A database on the server, and a file, in the folder we are in; neither has tables."""
    (folder / "small.yaml").write_text(SWEEP)
    return postgres, "results.db"


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    # the digest covers the times
    return {name: value for name, value in row.items() if name not in (*TIMES, "rows_digest")}


def rows_of(file: str) -> list[list[str]]:
    """The lines of a CSV file; numbers are rounded where summing in another order changes them."""
    with Path(file).open(newline="", encoding="utf-8") as lines:
        return sorted([_rounded(cell) for cell in row] for row in csv.reader(lines))


def _rounded(cell: str) -> str:
    try:
        return f"{float(cell):.12g}"
    except ValueError:
        return cell


def test_commands_give_what_they_give_with_a_file(both: tuple[str, str], dynabro: Dynabro) -> None:
    for database in both:
        for arguments in (QUADRATIC, DIGITS, (*DIGITS, "--seed", "1", "--method", "dynabro")):
            outcome = dynabro("run", *arguments, "--db", database, "--quiet")
            assert (outcome.code, outcome.err) == (0, "")
        outcome = dynabro("run", *QUADRATIC, "--db", database, "--quiet")
        assert "already in" in outcome.out
        assert dynabro("run", *QUADRATIC, "--db", database, "--quiet", "--rerun").code == 0
        outcome = dynabro(
            "sweep", "small.yaml", "--jobs", "0", "--db", database, "--quiet", "--json"
        )
        assert outcome.code == 0
        assert json.loads(outcome.out)["status"] == {"finished": 4}
        outcome = dynabro("sweep", "small.yaml", "--dry-run", "--json", "--db", database)
        assert [json.loads(outcome.out)[name] for name in ("planned", "stored", "to_do")] == [
            4,
            4,
            0,
        ]

    listed = [json.loads(dynabro("runs", "--json", "--db", database).out) for database in both]
    assert len(listed[0]) == 7
    assert [*map(without_times, listed[0])] == [*map(without_times, listed[1])]
    shown = [
        json.loads(dynabro("show", "runs/2", "--json", "--db", database).out) for database in both
    ]
    assert without_times(shown[0]) == without_times(shown[1])
    assert list(map(type, shown[0].values())) == list(map(type, shown[1].values()))
    assert dynabro("show", "runs/2", "--db", both[0]).code == 0
    for what in ("curves", "final", "rounds"):
        for database, file in zip(both, ("server.csv", "file.csv"), strict=True):
            where = "task = 'digits' OR method LIKE 'mom%'"
            assert (
                dynabro("export", what, "--csv", file, "--where", where, "--db", database).code == 0
            )
        assert rows_of("server.csv") == rows_of("file.csv")
        assert len(rows_of("file.csv")) > 2


def test_sql_of_the_readme(both: tuple[str, str], dynabro: Dynabro) -> None:
    for database in both:
        fill(database)
    for sql in STATEMENTS:
        if "json_each" in sql:  # in SQLite alone, as the page says
            continue
        outcomes = [dynabro("query", sql, "--csv", "--db", database) for database in both]
        assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
        for outcome, file in zip(outcomes, ("server.csv", "file.csv"), strict=True):
            Path(file).write_text(outcome.out)
        assert rows_of("server.csv") == rows_of("file.csv")
        if "'mnist'" in sql:  # no run on MNIST is here
            continue
        assert len(rows_of("file.csv")) > 1
        numbers = json.loads(dynabro("query", sql, "--json", "--db", both[0]).out)
        assert any(isinstance(value, float) for value in numbers[0].values())  # and not text


@pytest.mark.parametrize(
    "sql",
    ["DELETE FROM runs", "SET x.y = 1", "COPY runs TO PROGRAM 'cat'", "SELECT nosuch FROM runs"],
)
def test_wrong_sql_is_a_line(sql: str, both: tuple[str, str], dynabro: Dynabro) -> None:
    dynabro("run", *QUADRATIC, "--db", both[0], "--quiet")
    outcome = dynabro("query", sql, "--db", both[0])
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.problems) == 1


@pytest.mark.parametrize(
    "command",
    [("run", *QUADRATIC), ("sweep", "small.yaml"), ("runs",), ("show", "runs/1"), ("db", "check")],
)
def test_a_database_that_is_not_there(
    command: tuple[str, ...], both: tuple[str, str], dynabro: Dynabro
) -> None:
    url = make_url(both[0]).set(database="nosuch").render_as_string(hide_password=False)
    outcome = dynabro(*command, "--db", url)
    assert (outcome.code, outcome.out) == (66, "")
    (line,) = outcome.problems
    assert 'database "nosuch" does not exist' in line


# The program, whose database takes no connections any more when the first run is to be stored as
# finished.
CUT_OFF = """
import sys
from dynabro_cli.runs.store.write.recorder import Recorder
from tests.postgres import allow_connections
record = Recorder.record
def cut_off(self, event):
    if type(event).__name__ == "Finished":
        allow_connections(sys.argv[-1], False)
    record(self, event)
Recorder.record = cut_off
from dynabro_cli.cli.app import main
main()
"""


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        (("run", *QUADRATIC), 1),
        pytest.param(("sweep", "small.yaml", "--jobs", "2"), 4, marks=pytest.mark.slow),
    ],
)
def test_a_command_that_is_cut_off_can_be_repeated(
    command: tuple[str, ...], runs: int, both: tuple[str, str], dynabro: Dynabro
) -> None:
    url = both[0]
    words = [sys.executable, "-c", CUT_OFF, *command, "--quiet", "--db", url]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DYNABRO_BUSY_SECONDS": "2"}
    ended = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    allow_connections(url, True)
    assert (ended.returncode, ended.stdout) == (75, ""), ended.stderr
    waiting, line = ended.stderr.splitlines()
    assert "cannot be reached; waiting for its server, at most 2 s" in waiting
    assert line.startswith("dynabro: postgresql+psycopg://")
    assert "repeat the command" in line
    assert ("finished",) not in read(url, "SELECT status FROM runs")

    assert dynabro(*command, "--quiet", "--db", url).code == 0
    assert read(url, "SELECT status, rounds FROM runs") == [("finished", 20)] * runs
    assert read(url, "SELECT COUNT(*), COUNT(DISTINCT run_id) FROM rounds") == [(20 * runs, runs)]
