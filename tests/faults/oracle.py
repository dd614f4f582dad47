"""A small sweep of real runs, commands on it in processes of their own, and what must be in the
database after any fault.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from tests import postgres

ROOT = Path(__file__).parents[2]
DEADLINE = 240
"""Seconds after which a command that does not end is a failure: a multiple of what any takes."""

MOMENTUM = {
    "task": "quadratic",
    "method": "momentum:beta=0.9",
    "aggregator": "cwmed",
    "attack": "shift:lambda=1",
    "switching": "periodic:K=7",
    "budget": 2000,
    "eval_every": 100,
}
DYNABRO = {
    "task": "digits",
    "model": "mlp:hidden=16",
    "method": "dynabro",
    "aggregator": "cwtm",
    "attack": "ipm",
    "batch_size": 4,
    "switching": "periodic:K=7",
    "budget": 1200,
    "eval_every": 100,
}
SEEDS = 3
HOW = ("--threads", "1", "--compile", "off", "--checkpoint-every", "0.05")
TIMES = ("started_at", "finished_at", "heartbeat_at", "heartbeat_clock", "wall_seconds")
# the digest covers others of these
VOLATILE = ("id", "run_id", "owner", "host", "pid", "git_commit", "rows_digest", *TIMES)

TABLES = {
    "rounds": "round",
    "evaluations": "round",
    "recovery": "run_id",
    "identities": "tick",
    "worker_labels": "worker, label",
}
"""The tables whose rows belong to runs, with their order."""

Content = dict[str, dict[str, Any]]
"""By run key: the run's row, and its rows in the other tables."""


class Ended(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class Place:
    """A folder with a database and the sweep, in which commands are started.

    Args:
        folder: An empty folder.
        server: The URL of an empty database of a server; None: a file in the folder.

    Attributes:
        db: The file.
        database: The file, or the URL.
    """

    def __init__(self, folder: Path, server: str | None = None) -> None:
        self.folder, self.db = folder, folder / "results.db"
        self.database: Path | str = server or self.db
        self.sweep_file = folder / "faults.yaml"
        grid = {"name": "faults", "grid": {"cell": [MOMENTUM, DYNABRO]}, "seeds": f"0..{SEEDS - 1}"}
        self.sweep_file.write_text(json.dumps(grid))  # which is YAML, too
        self._environment = {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "DYNABRO_DB": str(self.database),
        } | ({"DYNABRO_STATE": str(folder / "results.db.d")} if server else {})
        self._processes: list[subprocess.Popen[str]] = []

    def start(
        self, *words: str, module: str = "dynabro_cli", **environment: str
    ) -> subprocess.Popen[str]:
        """Start ``dynabro WORDS`` on the database in a new session, like a terminal or a
        cluster.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=self.folder,
            env=os.environ | self._environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def script(self, text: str) -> subprocess.Popen[str]:
        """Start a Python program, which is talked with through its standard input and output."""
        process = subprocess.Popen(
            [sys.executable, "-c", text],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def do(self, *words: str, module: str = "dynabro_cli", **environment: str) -> Ended:
        """Start ``dynabro WORDS``, and wait for its end."""
        return end(self.start(*words, module=module, **environment))

    def close(self) -> None:
        """Kill what is left of every command."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()

    def holds(self, sql: str) -> bool:
        """Return True if a query of the database succeeds, once it exists."""
        if isinstance(self.database, str):
            made = read(self.database, "SELECT to_regclass('sweep_runs') IS NOT NULL") == [(True,)]
            return made and bool(read(self.database, sql))
        if not self.db.exists() or not read(
            self.db, "SELECT 1 FROM sqlite_master WHERE name = 'runs'"
        ):
            return False
        return bool(read(self.db, sql))

    def logs(self) -> str:
        """The content of the logs of all runs."""
        return "".join(
            path.read_text()
            for path in sorted((self.folder / "results.db.d" / "logs").glob("*.log"))
        )

    def checkpoints(self) -> list[Path]:
        """The files of checkpoints."""
        return sorted((self.folder / "results.db.d" / "checkpoints").glob("*"))


def _how(more: tuple[str, ...]) -> tuple[str, ...]:
    """``HOW`` with these options, which replace its own."""
    pairs = zip(HOW[::2], HOW[1::2], strict=True)
    return *(word for pair in pairs if pair[0] not in more for word in pair), *more


def sweep(place: Place, *more: str, jobs: int = 2) -> tuple[str, ...]:
    """The words of the sweep."""
    return ("sweep", str(place.sweep_file), "--jobs", str(jobs), *_how(more))


def run(cell: dict[str, Any], seed: int = 0, *more: str) -> tuple[str, ...]:
    """The words of one run of the sweep."""
    options = [
        word for name, value in cell.items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    return ("run", *options, "--seed", str(seed), *_how(more))


def end(process: subprocess.Popen[str], seconds: float = DEADLINE) -> Ended:
    """Wait for the end of a command, and of all that hold its standard error, as its workers do."""
    out, err = process.communicate(timeout=seconds)
    return Ended(process.returncode, out, err)


def read(database: Path | str, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Read from a file or a server's database with nothing of this package."""
    with closing(_connect(database)) as connection:
        return _execute(connection, sql, *values).fetchall()


def _connect(database: Path | str) -> Any:
    if isinstance(database, str):
        return postgres.connect(database)
    return sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=60)


def _execute(connection: Any, sql: str, *values: object) -> Any:
    on_server = not isinstance(connection, sqlite3.Connection)
    return connection.execute(sql.replace("?", "%s") if on_server and values else sql, values)


def content(database: Path | str) -> Content:
    """All that a database holds of its runs, except times and makers."""

    def rows(sql: str) -> list[dict[str, Any]]:
        cursor = _execute(connection, sql)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    with closing(_connect(database)) as connection:
        _execute(
            connection,
            "BEGIN"
            if isinstance(database, Path)
            else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        )
        runs = rows("SELECT * FROM runs ORDER BY id")
        found: Content = {
            run["run_key"]: {"run": _lasting(run)} | {table: [] for table in TABLES} for run in runs
        }
        keys = {run["id"]: run["run_key"] for run in runs}
        for table, order in TABLES.items():
            for row in rows(f"SELECT * FROM {table} ORDER BY run_id, {order}"):
                found[keys[row["run_id"]]][table].append(_lasting(row))
    return found


def _lasting(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in VOLATILE}


def check_part(place: Place, clean: Content) -> int:
    """Assert that what is stored is right as far as it goes; return how many rounds that is.

    A result is there with all its rows, and what is in progress has the first of the clean run's.
    """
    stored = content(place.database)
    for key, found in stored.items():
        if found["run"]["status"] in ("finished", "diverged"):
            assert not (wrong := differing(found, like(found, clean[key]))), (key, wrong)
        for table in ("rounds", "evaluations"):
            assert found[table] == clean[key][table][: len(found[table])], (table, key)
        assert found["run"]["rounds"] == len(found["rounds"]), key
    return sum(len(found["rounds"]) for found in stored.values())


def check_whole(place: Place, clean: Content, keys: Sequence[str] | None = None) -> None:
    """Assert that the runs with these keys (all, by default) are stored as a clean run stores them,
    and nothing else.
    """
    stored = content(place.database)
    wanted = clean if keys is None else {key: clean[key] for key in keys}
    assert stored.keys() == wanted.keys()
    for key, found in stored.items():
        assert not (wrong := differing(found, like(found, wanted[key]))), (key, wrong)
    check_database(place)


def check_database(place: Place) -> None:
    """Assert that dynabro's own check finds nothing."""
    checked = place.do("db", "check")
    assert checked.code == 0, checked


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The differences: columns of the run's row, and the first two rows of each table, each with
    the expected value.
    """
    wrong: dict[str, Any] = {}
    for part, own in found.items():
        other = wanted[part]
        if isinstance(own, dict):
            wrong |= {
                name: (value, other[name]) for name, value in own.items() if value != other[name]
            }
        elif own != other:
            wrong[part] = [
                pair for pair in itertools.zip_longest(own, other) if pair[0] != pair[1]
            ][:2]
    return wrong


def like(found: dict[str, Any], clean: dict[str, Any]) -> dict[str, Any]:
    """A clean run, under the name of the sweep that another was made in, if any."""
    return clean | {"run": clean["run"] | {"sweep": found["run"]["sweep"]}}


def key_of(clean: Content, cell: dict[str, Any], seed: int = 0) -> str:
    """The key of a run of the sweep."""
    (key,) = (
        key
        for key, found in clean.items()
        if found["run"]["task"] == cell["task"] and found["run"]["seed"] == seed
    )
    return key
