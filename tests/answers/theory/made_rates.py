"""Made-up results of the sweep ``verify-rate`` whose exponents are known."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from dynabro_cli.answers.theory.rate import is_control, part_of
from dynabro_cli.runs.store.environments import as_columns
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.tables import evaluations, runs
from tests.answers.figures.grids import _run, planned

ROUNDS = 200


def share(row: dict[str, Any]) -> int:
    """Number of dynamic rounds among 200: one for each 64 of K from 2048 down."""
    return 0 if row["switching"] == "static" else 4096 // int(row["switching"].partition("=")[2])


def value(row: dict[str, Any]) -> float:
    """7 T^-0.5, for controls 6 T^-0.7, 2 + 5 delta^0.8, or 0.25 + 3 (|tau_d|/T)^1.2, of a row of
    the plan.
    """
    part, _ = part_of(row)
    if is_control(row):
        return 6 * nominal(row["budget"]) ** -0.7
    if part in ("rounds", "optimum"):
        return 7 * nominal(row["budget"]) ** -0.5
    if part == "delta":
        return 2.0 + 5 * (row["byzantine"] / row["workers"]) ** 0.8
    return 0.25 + 3 * (share(row) / ROUNDS) ** 1.2


def nominal(budget: int) -> int:
    """The T that a budget of the sweep is for."""
    return {898: 128, 2050: 256, 4610: 512, 10242: 1024, 22530: 2048}[budget]


def fill(
    database: Path,
    settings: Sequence[str] = ("seeds=0..1",),
    *,
    spread: float = 0.0,
    known: bool = True,
) -> int:
    """Store a made-up result of each run of the sweep; return how many.

    Args:
        database: Where to.
        settings: Of the sweep.
        spread: How far seeds are from each other, as a factor of 1 +- spread.
        known: Whether the sums of squared gradients are numbers.
    """
    rows = planned("verify-rate", *settings)
    engine = open_for_writing(str(database))
    with engine.begin() as connection:
        for row in rows:
            dynamic = share(row) if row["clock"] == "computation" else 0
            total = ROUNDS * value(row) * (1 + spread * (1 if row["seed"] % 2 else -1))
            columns = _run(row, random.Random(0), False) | {
                "rounds": ROUNDS,
                "dynamic_rounds": dynamic,
            }
            columns |= {"squared_gradients": total if known else None}
            run_id = connection.execute(
                insert(runs).values(as_columns(connection, columns))
            ).inserted_primary_key[0]
            connection.execute(
                insert(evaluations), [_evaluation(run_id, 0, 9.0), _evaluation(run_id, ROUNDS, 0.1)]
            )
    engine.dispose()
    return len(rows)


def _evaluation(run_id: int, number: int, gap: float) -> dict[str, Any]:
    return {"run_id": run_id, "round": number, "budget": number, "samples": number, "gap": gap}


def static_rate(T: float, gamma: float, sigma: float, L: float, gap: float) -> float:
    """Return the learning rate of the theorem on Algorithm 1 (``thm:nonconvex-static``); gamma =
    kappa + 1/m, gap = f(x_1) - f*.
    """
    return min(math.sqrt(gap) / (4 * sigma * math.sqrt(L * gamma * T * math.log2(T))), 1 / L)


def dynamic_rate(T: float, gamma: float, CV: float, L: float, gap: float) -> float:
    """Return the learning rate of the theorem on Algorithm 2, Option 1 (``thm:nonconvex``); gamma =
    2 kappa + 1/m.
    """
    return min(math.sqrt(gap) / (3 * CV * math.sqrt(L * gamma * T * math.log2(T))), 1 / L)
