"""Databases with made-up results of the shipped sweeps; their numbers are drawn from the run's
key.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import func, insert, select

from dynabro_cli.experiment.grid.plan import plan
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep
from dynabro_cli.experiment.schedule import identities
from dynabro_cli.runs.store.environments import as_columns
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.tables import evaluations, rounds, runs

Row = dict[str, Any]
SCHEDULE = ("method", "switching", "clock", "workers", "byzantine", "budget", "seed")
"""Columns that determine who is Byzantine when."""
SMALL = ("budget=40", "eval_every=10")
"""Settings that keep made-up runs small."""
AT_GRADIENT = ("attack=sf", "attack_entry=gradient")
"""One attack for all methods of a sweep in which momentum has another one."""


def planned(sweep: str, *settings: str) -> list[Row]:
    """The rows of a sweep's plan."""
    return plan(load_sweep(sweep, settings)).rows


def fill(
    database: Path,
    rows: Sequence[Row],
    *,
    diverged: Callable[[Row], bool] = lambda _: False,
    with_rounds: bool = True,
) -> None:
    """Store a made-up result of each planned run; those that diverged end half-way. Figures of
    final scores need no rounds.
    """
    engine = open_for_writing(str(database))
    made: dict[Any, list[Row]] = {runs: [], evaluations: [], rounds: []}
    with engine.begin() as connection:
        before = connection.execute(select(func.max(runs.c.id))).scalar() or 0
        for run_id, row in enumerate(rows, before + 1):
            chance, half = random.Random(row["run_key"]), diverged(row)
            made[runs].append({"id": run_id, **as_columns(connection, _run(row, chance, half))})
            made[evaluations] += _evaluations(run_id, row, chance, half)
            made[rounds] += _rounds(run_id, row) if with_rounds else []
        for table, values in made.items():
            if not values:
                continue
            connection.execute(insert(table), values)
    engine.dispose()


def _run(row: Row, chance: random.Random, half: bool) -> Row:
    now = dt.datetime(2026, 1, 1)
    accuracy = None if row["task"] == "quadratic" else round(chance.random(), 4)
    return {
        **row,
        "spec": json.dumps(row["spec"]),
        "status": "diverged" if half else "finished",
        "dimension": 2,
        "final_accuracy": accuracy,
        "final_loss": accuracy and 1 - accuracy,
        "final_gap": 0.1 + chance.random() if accuracy is None else None,
        "budget_spent": row["budget"] // 2 if half else row["budget"],
        "rounds": row["budget"],
        "switches": 0,
        "dynamic_rounds": 0,
        "started_at": now,
        "finished_at": now,
        "wall_seconds": 60.0,
        "device": "cpu",
        "host": "here",
        "pid": 1,
        "versions": "{}",
    }


def _evaluations(run_id: int, row: Row, chance: random.Random, half: bool) -> list[Row]:
    """Evaluations every few computations, not at the same for all runs, as with rounds of different
    cost.
    """
    step, last = row["eval_every"], row["budget"] // 2 if half else row["budget"]
    budgets = [0, *(budget + chance.randrange(3) for budget in range(step, last, step)), last]
    objective = row["task"].startswith("quadratic")
    return [
        {
            "run_id": run_id,
            "round": budget,
            "budget": budget,
            "samples": budget * row["batch_size"] * row["workers"],
            "test_accuracy": None if objective else chance.random(),
            "test_loss": None if objective else chance.random(),
            "train_loss": None,
            "gap": chance.random() + 0.01 if objective else None,
            "x": json.dumps([chance.uniform(-3, 3), chance.uniform(-3, 3)]) if objective else None,
        }
        for budget in budgets
    ]


@functools.cache
def _byzantine(*schedule: Any) -> list[int]:
    """The number of Byzantine workers in each round, the same for all runs with one schedule."""
    row = dict(zip(SCHEDULE, schedule, strict=True))
    return [int(count) for count in identities(row, row["budget"]).sum(1)]


def _rounds(run_id: int, row: Row) -> list[Row]:
    counts = _byzantine(*(row[name] for name in SCHEDULE))
    return [
        {
            "run_id": run_id,
            "round": number,
            "budget": number + 1,
            "level": None,
            "cost": 1,
            "byzantine": count,
            "switched": False,
            "dynamic": False,
            "accepted": None,
            "learning_rate": 0.01,
            "gradient_norm": 1.0,
            "aggregation_error": 0.5,
        }
        for number, count in enumerate(counts)
    ]
