"""Findings of a report: the best method or rule under each attack, paired comparisons of methods,
and the best trials of searches.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from sqlalchemy import Engine

from dynabro_cli.analysis.columns import COLUMNS, RULE, TUNING, beside, name_of
from dynabro_cli.analysis.pairs import Cell, Comparison, compare
from dynabro_cli.analysis.ranking import DEFENCE, Ranking, number, ranking
from dynabro_cli.analysis.results import Results
from dynabro_cli.analysis.searches import Searches, file_of, numbers_of, read_searches
from dynabro_cli.components import format_value
from dynabro_cli.errors import DynabroError, NotFoundError, SpecError
from dynabro_cli.experiment.effect import CLOCK, ENTRY, READING
from dynabro_cli.experiment.label import OTHERS
from dynabro_cli.experiment.spec import fields
from dynabro_cli.store.read.queries import quoted
from dynabro_cli.store.read.searches import trials_condition

MOST_SWEEPS, MOST_CELLS, MOST_SHADE = 24, 4000, 45
"""Most sweeps with answers, most cells of a matrix, and most of a colour in percent."""
BOTH = f"{name_of('pre_aggregators')} and {name_of('aggregator')}"
REFERENCE = "dynabro"
MOST_METHODS, MOST_ROWS, MOST_TABLES = 8, 60, 40
BEST, MOST_SEARCHES = 10, 60
"""Trials of a table of a search, and most of these tables."""
HEADER = ["cell", "pairs", "A", "B", "A - B", "95% interval", "Holm's p", "better"]

Table = dict[str, Any]


def answers(results: Results) -> list[dict[str, Any]]:
    """Return a comparison for each sweep and task, and for each field that can be compared there;
    the usual one first.

    Each has ``sweep``, ``task``, ``label`` (the compared fields), ``sentence``, ``notes`` and
    ``panels``: a title, columns, and rows of a label, cells, the worst cell, and the mean rank.
    """
    groups = [
        (str(sweep), str(task), group)
        for (sweep, task), group in results.runs.groupby(["sweep", "task"], sort=False)
    ]
    if len(results.sweeps) > 1:
        groups = [
            ("", str(task), group) for task, group in results.runs.groupby("task", sort=False)
        ] + groups
    kept: list[dict[str, Any]] = []
    for sweep, task, group in groups[:MOST_SWEEPS]:
        several = results.sweeps if not sweep else ()
        part = dataclasses.replace(results, runs=group, planned=group, sweeps=several)
        varied = [
            name for name in COLUMNS if name != READING and group[name].nunique(dropna=False) > 1
        ]
        fields = [name for name in varied if name in (*DEFENCE, *TUNING)]
        if "pre_aggregators" in fields and "aggregator" in fields:
            fields = [
                RULE if name == "aggregator" else name
                for name in fields
                if name != "pre_aggregators"
            ]
        for rows in (None, *fields, *(["sweep"] if several else [])):
            try:
                ranked = ranking(part, None, rows=rows)
            except DynabroError:  # too many matrices, or no number
                continue
            if len(ranked.rows) < 2 or len(ranked.cells) > MOST_CELLS:
                continue
            names = [rows] if rows else list(ranked.layout.rows)
            label = " and ".join(map(name_of, names)).replace(BOTH, RULE)
            answer = _shown(ranked) | {"sweep": sweep, "task": task, "label": label}
            if not any({**answer, "label": ""} == {**other, "label": ""} for other in kept):
                kept.append(answer)
    return kept


def _shown(ranked: Ranking) -> dict[str, Any]:
    means = ranked.cells["mean"].dropna()
    low, high = means.min(), means.max()

    def shade(mean: float) -> int:
        """Return the share of a colour in percent: the ink stays readable on all shades."""
        part = (mean - low) / (high - low) if high > low else 1.0
        return round(MOST_SHADE * part) if math.isfinite(part) else 0

    def shown(cell: Any) -> dict[str, Any]:
        mean, _, spread = number(cell, " ", mark="").partition(" ")
        counts = {name: int(getattr(cell, name)) for name in ("best", "tied", "n", "diverged")}
        return {"mean": mean, "spread": spread, "shade": shade(cell.mean), **counts}

    panels = []
    for title in ranked.panels:
        cells = {(cell.row, cell.column): cell for cell in ranked.panel(title).itertuples()}
        columns = [name for name in ranked.columns if any(column == name for _, column in cells)]
        rows = []
        for row in ranked.rows:
            of_row = [cells.get((row, column)) for column in columns]
            first: Any = next((cell for cell in of_row if cell is not None), None)
            if first is not None:
                worst = {"mean": f"{first.worst:.3f}", "column": str(first.worst_column)}
                texts = [None if cell is None else shown(cell) for cell in of_row]
                worst["shade"] = str(shade(first.worst))
                rows.append([row, texts, worst, f"{first.mean_rank:.2g}"])
        panels.append({"title": title, "columns": columns, "rows": rows})
    return {"sentence": ranked.sentence, "notes": ranked.notes, "panels": panels}


def findings(
    results: Results, tasks: Sequence[Mapping[str, Any]], where: str | None
) -> list[Table]:
    """Return tables that compare a reference method with each other method of a sweep, as ``dynabro
    compare`` does.

    The reference is ``dynabro``, or the method of the first run. A side is a method with the
    settings that only it has in the sweep, such as its learning rate. Methods without paired runs
    are left out.

    Args:
        results: The runs.
        tasks: The tasks, with their metric.
        where: The condition that chose the runs.
    """
    tables: list[Table] = []
    by_name = {str(task["name"]): task for task in tasks}
    for (sweep, name), part in results.runs.groupby(["sweep", "task"], sort=False):
        task = by_name[name]
        methods = list(dict.fromkeys(part["method"]))
        first = next((name for name in methods if name.partition(":")[0] == REFERENCE), methods[0])
        part = beside(part)
        condition = f"COALESCE(sweep, '') = {quoted(sweep)} AND task = {quoted(name)}" + (
            f" AND ({where})" if where else ""
        )
        others = [method for method in methods if method != first][:MOST_METHODS]
        for other, reading in itertools.product(others, dict.fromkeys(part[READING])):
            a, b = _sides(part[part[READING] == reading], first, other)
            try:
                comparison = compare(results.engine, a, b, condition, task["metric"])
            except (NotFoundError, SpecError):  # nothing pairs, or one run has several partners
                continue
            cut = (
                f"; the first {MOST_ROWS} of {len(comparison.cells)} cells"
                if len(comparison.cells) > MOST_ROWS
                else ""
            )
            words = (
                f"{sweep or 'no sweep'}, {name}: A = {_side_text(a)} against B = {_side_text(b)}, "
                f"{task['label']} at the end{cut}"
            )
            rows = [_row(cell) for cell in comparison.cells[:MOST_ROWS]]
            tables.append(
                {"caption": words, "columns": HEADER, "rows": rows, "notes": _notes(comparison)}
            )
    return tables[:MOST_TABLES]


def _notes(comparison: Comparison) -> list[str]:
    """Return the notes of a comparison, with what holds for the tables of a report."""
    notes = list(comparison.notes)
    if len(comparison.cells) > 1:
        notes.append(
            f"Holm's correction is over the {len(comparison.cells)} cells of this table, not over "
            "all tables"
        )
    single = sum(cell.test.n == 1 for cell in comparison.cells)
    if single:
        notes.append(
            f"{single} of {len(comparison.cells)} cells have one pair: no interval and no test"
        )
    return notes


def _sides(runs: pd.DataFrame, first: str, other: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both methods, each with the fields that have one value per method, and differ between
    the methods.
    """
    parts = [runs[runs["method"] == method] for method in (first, other)]
    reading = {READING: runs[READING].iloc[0]} if runs[READING].any() else {}
    sides: tuple[dict[str, Any], dict[str, Any]] = (
        {"method": first, **reading},
        {"method": other, **reading},
    )
    for name in (name for name in OTHERS if name not in (ENTRY, CLOCK)):
        values = [list(dict.fromkeys(part[name].dropna())) for part in parts]
        if len(values[0]) == len(values[1]) == 1 and values[0] != values[1]:
            for side, (value,) in zip(sides, values, strict=True):
                side[name] = fields()[name].type(value)
    return sides


def _side_text(side: Mapping[str, Any]) -> str:
    settings = [
        f"{name}={format_value(value)}"
        for name, value in side.items()
        if name not in ("method", READING)
    ]
    settings += [side[READING]] if READING in side else []
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


def searched(results: Results) -> list[Table]:
    """Return a table for each search that made runs of the report: its best trials, with the mean
    of their repetitions.
    """
    names = [name for name in dict.fromkeys(results.runs["sweep"]) if name]
    stored = _read(results.engine, names)
    if stored is None:
        return []
    searches = list(dict.fromkeys(stored.trials["search"]))
    return [_of_search(stored, name) for name in searches[:MOST_SEARCHES]]


def _read(engine: Engine, names: list[str]) -> Searches | None:
    """Return the searches among some sweeps; None if there are none."""
    conditions = [
        condition for name in names if (condition := trials_condition(engine, [name])) is not None
    ]
    try:
        return read_searches(engine, " OR ".join(conditions)) if conditions else None
    except NotFoundError:
        return None


def _of_search(searches: Searches, name: str) -> Table:
    trials, about = (
        searches.trials[searches.trials["search"] == name],
        searches.about[file_of(name)],
    )
    done = trials[trials["status"] == "finished"].sort_values(
        "value", ascending=not about.maximize, kind="stable"
    )
    rows, repeated = [], False
    for trial, runs in searches._replace(trials=done.head(BEST)).repetitions():
        values = numbers_of(runs, about.goal)
        repeated |= len(values) > 0
        mean = f"{values.mean():.4g} over {len(values)} seeds" if len(values) else "-"
        choices = ", ".join(f"{key}={_text(value)}" for key, value in trial.parameters.items())
        rows.append([trial.number, choices, _text(float(trial.value)), mean])
    counts = ", ".join(
        f"{count} {status}" for status, count in trials["status"].value_counts(sort=False).items()
    )
    way = "highest" if about.maximize else "lowest"
    note = "the value of a trial is optimistic: it is the best of many noisy numbers"
    notes = [
        f"{note}; the repeated seeds count" if repeated else f"{note}, and no trial was repeated"
    ]
    return {
        "caption": f"{name}: {way} {about.title} of {len(trials)} trials ({counts})",
        "columns": ["trial", "choices", "value", "repeated"],
        "rows": rows,
        "notes": notes,
    }


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if math.isfinite(value) else "infinite"
