"""Searches of a report: the best trials of each, and how much to believe them."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import Engine

from dynabro_cli.errors import NotFoundError
from dynabro_cli.figures._data import Results
from dynabro_cli.figures._searches import Searches, file_of, numbers_of, read_searches
from dynabro_cli.store.read.searches import named

BEST, MOST_TABLES = 10, 60
"""Trials of a table, and most tables."""

Table = dict[str, Any]


def searched(results: Results) -> list[Table]:
    """Return a table for each search that made runs of the report: its best trials, with the mean of their repetitions."""
    names = [name for name in dict.fromkeys(results.runs["sweep"]) if name]
    found = _read(results.engine, names)
    if found is None:
        return []
    searches = list(dict.fromkeys(found.trials["search"]))
    return [_table(found, name) for name in searches[:MOST_TABLES]]


def _read(engine: Engine, names: list[str]) -> Searches | None:
    """Return the searches among some sweeps; None if there are none."""
    conditions = [condition for name in names if (condition := named(engine, [name])) is not None]
    try:
        return read_searches(engine, " OR ".join(conditions)) if conditions else None
    except NotFoundError:
        return None


def _table(found: Searches, name: str) -> Table:
    own, about = found.trials[found.trials["search"] == name], found.about[file_of(name)]
    done = own[own["status"] == "finished"].sort_values("value", ascending=not about.maximize, kind="stable")
    rows, repeated = [], False
    for trial in done.head(BEST).itertuples():
        runs = found.repetitions(trial)
        values = numbers_of(runs, about.goal)
        repeated |= len(values) > 0
        mean = f"{values.mean():.4g} over {len(values)} seeds" if len(values) else "-"
        choices = ", ".join(f"{key}={_text(value)}" for key, value in trial.parameters.items())
        rows.append([trial.number, choices, _text(float(trial.value)), mean])
    counts = ", ".join(f"{count} {status}" for status, count in own["status"].value_counts(sort=False).items())
    way = "highest" if about.maximize else "lowest"
    note = "the value of a trial is optimistic: it is the best of many noisy numbers"
    notes = [f"{note}; the repeated seeds count" if repeated else f"{note}, and no trial was repeated"]
    return {
        "caption": f"{name}: {way} {about.title} of {len(own)} trials ({counts})",
        "columns": ["trial", "choices", "value", "repeated"],
        "rows": rows,
        "notes": notes,
    }


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if math.isfinite(value) else "infinite"
