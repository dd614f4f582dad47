"""Findings of a report: paired comparisons of methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dynabro_cli.components import format_value
from dynabro_cli.errors import NotFoundError, SpecError
from dynabro_cli.experiment.label import OTHERS
from dynabro_cli.experiment.spec import fields
from dynabro_cli.figures._data import Results
from dynabro_cli.store.read.pairs import Cell, Comparison, compare

REFERENCE = "dynabro"
MOST_METHODS, MOST_ROWS, MOST_TABLES = 8, 60, 40
COLUMNS = ["cell", "pairs", "A", "B", "A - B", "95% interval", "Holm's p", "better"]

Table = dict[str, Any]


def findings(results: Results, tasks: Sequence[Mapping[str, Any]], where: str | None) -> list[Table]:
    """Return tables that compare a reference method with each other method of a sweep, as ``dynabro compare`` does.

    The reference is ``dynabro``, or the method of the first run. A side is a method with the settings that only it has in the
    sweep, such as its learning rate. Methods without paired runs are left out.

    Args:
        results: The runs.
        tasks: The tasks, with their metric.
        where: The condition that chose the runs.
    """
    tables: list[Table] = []
    known = {str(task["name"]): task for task in tasks}
    for (sweep, name), own in results.runs.groupby(["sweep", "task"], sort=False):
        task = known[name]
        methods = list(dict.fromkeys(own["method"]))
        first = next((name for name in methods if name.partition(":")[0] == REFERENCE), methods[0])
        condition = f"COALESCE(sweep, '') = {_quoted(sweep)} AND task = {_quoted(name)}" + (f" AND ({where})" if where else "")
        for other in [method for method in methods if method != first][:MOST_METHODS]:
            a, b = _sides(own, first, other)
            try:
                found = compare(results.engine, a, b, condition, task["metric"])
            except (NotFoundError, SpecError):  # nothing pairs, or one run has several partners
                continue
            cut = f"; the first {MOST_ROWS} of {len(found.cells)} cells" if len(found.cells) > MOST_ROWS else ""
            words = f"{sweep or 'no sweep'}, {name}: A = {_told(a)} against B = {_told(b)}, {task['label']} at the end{cut}"
            rows = [_row(cell) for cell in found.cells[:MOST_ROWS]]
            tables.append({"caption": words, "columns": COLUMNS, "rows": rows, "notes": _notes(found)})
    return tables[:MOST_TABLES]


def _notes(found: Comparison) -> list[str]:
    """Return the notes of a comparison, with what holds for the tables of a report."""
    notes = list(found.notes)
    if len(found.cells) > 1:
        notes.append(f"Holm's correction is over the {len(found.cells)} cells of this table, not over all tables")
    single = sum(cell.test.n == 1 for cell in found.cells)
    if single:
        notes.append(f"{single} of {len(found.cells)} cells have one pair: no interval and no test")
    return notes


def _sides(runs: pd.DataFrame, first: str, other: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both methods, each with the fields that have one value for it and another value for the other one."""
    own = [runs[runs["method"] == method] for method in (first, other)]
    sides: tuple[dict[str, Any], dict[str, Any]] = ({"method": first}, {"method": other})
    for name in OTHERS:
        values = [list(dict.fromkeys(part[name].dropna())) for part in own]
        if len(values[0]) == len(values[1]) == 1 and values[0] != values[1]:
            for side, (value,) in zip(sides, values, strict=True):
                side[name] = fields()[name].type(value)
    return sides


def _quoted(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _told(side: Mapping[str, Any]) -> str:
    settings = [f"{name}={format_value(value)}" for name, value in side.items() if name != "method"]
    return str(side["method"]) + (f" ({', '.join(settings)})" if settings else "")


def _row(cell: Cell) -> list[str]:
    ends = cell.test.student
    interval = "-" if math.isnan(ends.low) else f"{ends.low:+.3g} to {ends.high:+.3g}"
    p = "-" if math.isnan(cell.holm_t) else f"{cell.holm_t:.2g}"
    label = ", ".join(str(value) for value in cell.labels.values()) or "all"
    return [
        label,
        str(cell.test.n),
        f"{cell.a:.4g}",
        f"{cell.b:.4g}",
        f"{cell.test.mean:+.4g}",
        interval,
        p,
        cell.better or "-",
    ]
