"""A database of many runs: processor time of commands that read it, or find everything already
stored.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Engine, Table, insert

from benchmarks.measuring import machine, spread, table
from dynabro_cli.experiment.grid.plan import plan
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep
from dynabro_cli.experiment.key import canonical_json
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.store.environments import as_columns
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.tables import byzantine_counts, evaluations, recovery, rounds, runs
from dynabro_cli.runs.store.write import row_digests
from dynabro_cli.runs.store.write.switch_recovery import THINNED

SWEEP = "digits-worst-case"
STORED = 2736
"""Runs of the shipped sweep; further seeds make the rest of the database."""
BUDGET = 500
EVERY = 50
KEPT = (*range(0, BUDGET, EVERY), BUDGET - 1)
"""The rounds that ``dynabro db thin --every 50`` leaves of ``BUDGET``."""
EVALUATED = (*range(0, 94 * 5, 5), BUDGET)
"""The rounds after which a run was evaluated."""
WHEN = dt.datetime(2026, 1, 1)


class Cost(NamedTuple):
    """Seconds of wall clock and of processor time, children included."""

    wall: float
    cpu: float


def measure(count: int, points: int, repeats: int, keep: Path | None) -> str:
    """Make a database, and time each command on it.

    Args:
        count: The number of runs in the database.
        points: The number of points of the larger dry-run.
        repeats: The number of measurements of each command.
        keep: The place of the database, which is kept; None for a temporary folder.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = keep or Path(folder) / "big.db"
        began = time.perf_counter()
        fill(path, count)
        made = time.perf_counter() - began
        costs = {words: [_time(words, path) for _ in range(repeats)] for words in _commands(points)}
        rows = [
            (
                " ".join(words),
                *spread([cost.cpu for cost in turns]),
                spread([cost.wall for cost in turns])[1],
                _locks(words, path),
            )
            for words, turns in costs.items()
        ]
        size = path.stat().st_size / 1e6
    header = [
        "dynabro",
        "CPU, min, s",
        "median",
        "max",
        "wall, median, s",
        "with the write lock taken",
    ]
    what = (
        f"{count:,} runs, {count * len(EVALUATED):,} evaluations, {size:.0f} MB, made in "
        f"{made:.0f} s"
    )
    return f"{machine('cpu')}\n{what}\n\n{table(header, rows)}"


def fill(path: Path, count: int) -> None:
    """Make a database with ``count`` finished runs: the runs of the sweep with further seeds and
    made-up results.
    """
    engine = open_for_writing(str(path))
    seeds = math.ceil(count / (STORED / 2))
    made = plan(load_sweep(SWEEP, [f"seeds=0..{seeds - 1}"])).runs
    numbered = enumerate(sorted(made, key=lambda run: run.spec.seed)[:count], start=1)
    with engine.begin() as connection:
        for number, run in numbered:
            connection.execute(insert(runs), [as_columns(connection, _run(number, run))])
    numbers = range(1, count + 1)
    _insert(
        engine, evaluations, (_evaluation(number, at) for number in numbers for at in EVALUATED)
    )
    _insert(engine, rounds, (_round(number, at) for number in numbers for at in KEPT))
    of_thinned = {"switches_seen": 0, "recoveries": 0, "reason": THINNED}
    _insert(engine, recovery, ({"run_id": number} | of_thinned for number in numbers))
    _insert(
        engine,
        byzantine_counts,
        ({"run_id": number, "byzantine": 5, "rounds": BUDGET} for number in numbers),
    )
    with engine.begin() as connection:
        row_digests.store(connection)
    engine.dispose()


def _insert(engine: Engine, into: Table, rows: Iterator[dict[str, Any]]) -> None:
    """Insert rows without SQLAlchemy, which would take a minute."""
    first = next(rows)
    statement = (
        f"INSERT INTO {into.name} ({', '.join(first)}) VALUES ({', '.join('?' * len(first))})"
    )
    with engine.begin() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute(statement, tuple(first.values()))
        driver.executemany(statement, (tuple(row.values()) for row in rows))


def _run(number: int, run: Run) -> dict[str, Any]:
    """Return a row of ``runs``."""
    return asdict(run.spec) | {
        "id": number,
        "run_key": run.key,
        "status": "finished",
        "sweep": SWEEP,
        "spec": canonical_json(run.mapping),
        "dimension": 8970,
        "final_accuracy": _accuracy(BUDGET),
        "final_loss": 0.5,
        "budget_spent": BUDGET,
        "rounds": BUDGET,
        "switches": 0,
        "dynamic_rounds": 0,
        "started_at": WHEN,
        "finished_at": WHEN + dt.timedelta(seconds=1),
        "wall_seconds": 1.0,
        "device": "cpu",
        "host": platform.node(),
        "pid": 1,
        "versions": "{}",
        "rounds_every": EVERY,
    }


def _accuracy(at: int) -> float:
    return 0.9 * at / BUDGET


def _evaluation(number: int, at: int) -> dict[str, Any]:
    """Return a row of ``evaluations``."""
    return {
        "run_id": number,
        "round": at,
        "budget": at,
        "samples": at * 16 * 13,
        "test_accuracy": _accuracy(at),
        "test_loss": 0.5,
        "train_loss": 0.5,
    }


def _round(number: int, at: int) -> dict[str, Any]:
    """Return a row of ``rounds``."""
    return {
        "run_id": number,
        "round": at,
        "budget": at + 1,
        "cost": 1,
        "byzantine": 5,
        "switched": False,
        "dynamic": False,
        "learning_rate": 0.1,
        "gradient_norm": 1.0,
    }


def _commands(points: int) -> list[tuple[str, ...]]:
    """Return the commands as they are typed."""
    more = f"seeds=0..{max(1, points // (STORED // 2)) - 1}"
    return [
        ("sweep", SWEEP, "--dry-run"),
        ("sweep", SWEEP, "--set", more, "--dry-run"),
        ("sweep", SWEEP, "--quiet"),
        ("status",),
        ("runs",),
        ("db", "check"),
    ]


def _time(words: Sequence[str], database: Path) -> Cost:
    """Run a command in a new process, which must succeed."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(_command(words, database), check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, os.times()
    return Cost(
        wall,
        after.children_user + after.children_system - before.children_user - before.children_system,
    )


def _locks(words: Sequence[str], database: Path) -> str:
    """Describe the outcome of the command while another program holds the database's write lock."""
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        patience = os.environ | {"DYNABRO_BUSY_SECONDS": "0.5"}
        ended = subprocess.run(
            _command(words, database), env=patience, capture_output=True, check=False
        )
    return "as without" if ended.returncode == 0 else f"exit code {ended.returncode}"


def _command(words: Sequence[str], database: Path) -> list[str]:
    return [sys.executable, "-m", "dynabro_cli", *words, "--db", str(database)]
