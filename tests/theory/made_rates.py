"""Made-up results of the sweep ``verify-rate`` whose exponents are known."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from dynabro_cli.store.engine import open_for_writing
from dynabro_cli.store.tables import evaluations, runs
from dynabro_cli.theory.rate import part_of
from tests.figures.grids import _run, planned

ROUNDS = 200


def share(row: dict[str, Any]) -> int:
    """How many of 200 rounds are made dynamic: one for each 64 of K from 2048 down."""
    return 0 if row["switching"] == "static" else 4096 // int(row["switching"].partition("=")[2])


def value(row: dict[str, Any]) -> float:
    """7 T^-0.5, 5 delta^0.8 (2 without Byzantine workers), or 0.25 + 3 (|tau_d|/T)^1.2, of a row of the plan."""
    part, _ = part_of(row)
    if part == "rounds":
        return 7 * nominal(row["budget"]) ** -0.5
    if part == "delta":
        return 5 * (row["byzantine"] / row["workers"]) ** 0.8 if row["byzantine"] else 2.0
    return 0.25 + 3 * (share(row) / ROUNDS) ** 1.2


def nominal(budget: int) -> int:
    """The T that a budget of the sweep is for."""
    return {898: 128, 2050: 256, 4610: 512, 10242: 1024, 22530: 2048}[budget]


def fill(database: Path, settings: Sequence[str] = ("seeds=0..1",), *, spread: float = 0.0, x: str | None = None) -> int:
    """Store a made-up result of each run of the sweep; return how many.

    Args:
        database: Where to.
        settings: Of the sweep.
        spread: How far seeds are from each other, as a factor of 1 +- spread.
        x: Another text in the place of every point.
    """
    rows = planned("verify-rate", *settings)
    engine = open_for_writing(str(database))
    with engine.begin() as connection:
        for row in rows:
            dynamic = share(row) if row["clock"] == "computation" else 0
            columns = _run(row, random.Random(0), False) | {"rounds": ROUNDS, "dynamic_rounds": dynamic}
            run_id = connection.execute(insert(runs).values(columns)).inserted_primary_key[0]
            factor = 1 + spread * (1 if row["seed"] % 2 else -1)
            connection.execute(insert(evaluations), _evaluations(run_id, value(row) * factor, x))
    engine.dispose()
    return len(rows)


def _evaluations(run_id: int, mean: float, x: str | None) -> list[dict[str, Any]]:
    """Three x_t with |A x|^2 = 0, 1.5 and 1.5 times ``mean``, and one after the last round, which does not count.

    A has the eigenvalue 3 along (1, 1)/sqrt 2, and 1 across.
    """
    along, across = (1.5 * mean / 18) ** 0.5, (1.5 * mean / 2) ** 0.5
    points = [(0.0, 0.0), (along, along), (across, -across), (1e3, 1e3)]
    return [
        {
            "run_id": run_id,
            "round": number,
            "budget": number,
            "samples": number,
            "gap": 9.0,
            "x": x if x is not None else json.dumps(point, separators=(",", ":")),
        }
        for number, point in zip((0, 1, ROUNDS - 1, ROUNDS), points, strict=True)
    ]
