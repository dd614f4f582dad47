"""Statements that never end: Ctrl-C, SIGTERM and a time limit stop them, and the exit code says
which.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynabro_cli.runs.store.open.engine import open_for_writing
from tests.cli.conftest import Dynabro
from tests.postgres import connect

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c"
CONDITION = f"id = ({ENDLESS})"
PROGRAM = """
import sys
import time
from dynabro_cli.cli.app import main
from dynabro_cli.runs.store.open import connections
from dynabro_cli.runs.store.open import engine
from dynabro_cli.runs.store.read import queries

def noted(function):
    def call(*arguments):
        value = function(*arguments)
        print("ready", flush=True, file=sys.stderr)
        return value
    return call

if sys.argv[1] == "locked":
    connections.busy_seconds = noted(connections.busy_seconds)
else:
    queries._rows = noted(queries._rows)
sys.argv[1:] = sys.argv[2:]
main()
"""
"""``dynabro``, which says when it begins to read, or to wait for a lock."""


def stopped(number: int, *words: str, locked: bool = False) -> tuple[int, str]:
    """Send a signal to a command as soon as it reads; return its exit code, and what it said to
    that.
    """
    command = [sys.executable, "-c", PROGRAM, "locked" if locked else "reading", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process:
        try:
            assert process.stderr.readline() == "ready\n"
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, said.replace("ready\n", "")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, ("query", ENDLESS)),
        (signal.SIGTERM, 75, ("query", ENDLESS)),
        (signal.SIGTERM, 75, ("runs", "--where", CONDITION)),
        pytest.param(
            signal.SIGINT,
            130,
            ("db", "thin", "thin.db", "--every", "2", "--where", CONDITION),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            signal.SIGINT,
            130,
            ("export", "curves", "--csv", "-", "--where", CONDITION),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            signal.SIGTERM,
            75,
            ("plot", "final", "--where", f"runs.{CONDITION}"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_signal_ends_a_statement_that_does_not_end(
    number: int, code: int, words: tuple[str, ...], results: Path
) -> None:
    ended, said = stopped(number, *words)
    assert (ended, len(said.splitlines())) == (code, 1), said
    assert said.startswith(
        "dynabro: interrupted" if number == signal.SIGINT else "dynabro: terminated"
    )
    assert {path.name for path in results.parent.iterdir()} <= {
        "results.db",
        "results.db-wal",
        "results.db-shm",
    }


ONE_CALLS = (
    "SELECT instr(hex(zeroblob(20000000)), hex(zeroblob(9000000)) || '1')",
    "SELECT length(replace(hex(zeroblob(20000000)), hex(zeroblob(9000000)) || '1', ''))",
    "SELECT length(ltrim(hex(zeroblob(20000000)), replace(hex(zeroblob(500000)), 0, 1) || 0))",
)
"""Statements of one operation, between whose steps SQLite asks nobody."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, ("query", ONE_CALLS[0])),
        (signal.SIGTERM, 75, ("query", ONE_CALLS[0])),
        (signal.SIGTERM, 75, ("export", "curves", "--csv", "-", "--where", f"({ONE_CALLS[0]})")),
    ],
)
def test_a_signal_ends_one_call_of_a_function(
    number: int, code: int, words: tuple[str, ...], results: Path
) -> None:
    ended, said = stopped(number, *words)
    assert (ended, len(said.splitlines())) == (code, 1), said


@pytest.mark.thorough
@pytest.mark.parametrize("sql", ONE_CALLS)
def test_one_call_of_a_function_ends_when_its_time_is_over(sql: str, results: Path) -> None:
    command = [sys.executable, "-m", "dynabro_cli", "query", sql, "--timeout", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (124, "")
    stopped = "timeout=0.5: the statement was stopped after 0.5 s. Try: a longer --timeout, or "
    assert done.stderr.startswith(f"dynabro: {stopped}")
    assert len(done.stderr.splitlines()) == 1


WATCHED = """
import sqlite3, sys, time
from dynabro_cli.answers.figures.report import site
site.MOST_SECONDS = 1.0
connection = sqlite3.connect(":memory:", factory=site._Watched)
for sql in sys.argv[1:]:
    connection.set_progress_handler(lambda: 0, 1000)
    connection.execute(sql).fetchall()
    connection.set_progress_handler(None, 1000)
time.sleep(2)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("statements", "code"), [(("SELECT 1", "SELECT 2"), 0), (("SELECT 1", ONE_CALLS[1]), 124)]
)
def test_one_call_of_a_function_ends_the_pages_rather_than_hold_them(
    statements: tuple[str, ...], code: int
) -> None:
    command = [sys.executable, "-c", WATCHED, *statements]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("dynabro: a statement did not stop after " if code else "")


CHECKING = """
import os
from dynabro_cli.cli.app import main
from dynabro_cli.runs.store.open import engine

def allow(connection):
    def authorize(*_):
        os.kill(os.getpid(), int(os.environ.pop("NUMBER", 0)))
        return sum(range(1000)) * 0

    connection.set_authorizer(authorize)

engine.allow_reading_only = allow
main()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_is_not_lost_while_sqlite_asks_what_is_allowed(
    number: int, code: int, results: Path
) -> None:
    """SQLite drops what the handler raises there, and takes it for a no."""
    command = [sys.executable, "-c", CHECKING, "query", "SELECT 1"]
    environment = os.environ | {"NUMBER": str(int(number))}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (code, 1), ended.stderr


@pytest.mark.thorough
def test_a_signal_ends_the_waiting_for_a_lock(results: Path) -> None:
    with contextlib.closing(sqlite3.connect(results, isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("PRAGMA journal_mode = DELETE")
        holder.execute("BEGIN EXCLUSIVE")
        assert stopped(signal.SIGINT, "runs", locked=True) == (130, "dynabro: interrupted\n")


@pytest.mark.parametrize("sql", [ENDLESS, ENDLESS.replace("COUNT(*)", "x")])
@pytest.mark.parametrize("form", ["--json", "--csv", None])
def test_a_query_ends_when_its_time_is_over(
    sql: str, form: str | None, dynabro: Dynabro, results: Path
) -> None:
    ended = dynabro("query", sql, "--timeout", "0.2", *([form] if form else []))
    assert ended.code == 124
    assert ended.problems == [
        (
            "timeout=0.2: the statement was stopped after 0.2 s. Try: a longer --timeout, or "
            "narrow the statement"
        )
    ]


def test_a_query_that_is_in_time_is_answered(dynabro: Dynabro, results: Path) -> None:
    ended = dynabro("query", "SELECT 1 AS one", "--timeout", "100", "--csv")
    assert (ended.code, ended.out) == (0, "one\n1\n")


def test_a_query_that_cannot_begin_leaves_no_time_limit(dynabro: Dynabro, folder: Path) -> None:
    assert dynabro("query", "SELECT 1", "--db", "none.db", "--timeout", "50").code == 66
    timers = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e300"])
def test_a_time_limit_is_a_time(seconds: str, dynabro: Dynabro, results: Path) -> None:
    ended = dynabro("query", "SELECT 1", "--timeout", seconds)
    assert ended.code == 2
    assert ended.problems[0].startswith(f"timeout={float(seconds):g}: ")


# --- of a server

SERVERS = (
    "WITH RECURSIVE c(x) AS (SELECT 1::bigint UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c"
)


@pytest.fixture
def server(postgres: str) -> Iterator[str]:
    open_for_writing(postgres).dispose()
    yield postgres
    going_on = (
        "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND pid "
        "<> pg_backend_pid()"
    )
    with contextlib.closing(connect(postgres, autocommit=True)) as connection:
        for _ in range(100):  # a server takes a moment to hear of it
            left = connection.execute(f"{going_on} AND state = 'active'").fetchall()
            if not left:
                break
            time.sleep(0.1)
        assert left == []


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_ends_a_servers_statement_on_the_server(
    number: int, code: int, server: str
) -> None:
    ended, said = stopped(number, "query", SERVERS, "--db", server)
    assert (ended, len(said.splitlines())) == (code, 1), said


def test_a_servers_statement_ends_when_its_time_is_over(dynabro: Dynabro, server: str) -> None:
    ended = dynabro("query", SERVERS, "--db", server, "--timeout", "0.3")
    assert (ended.code, len(ended.problems)) == (124, 1)
    assert (
        dynabro("query", "SELECT 1 AS one", "--db", server, "--timeout", "60", "--csv").out
        == "one\n1\n"
    )
