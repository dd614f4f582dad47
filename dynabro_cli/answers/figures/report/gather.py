"""The content of a report: runs, cells, curves, histograms and timelines, as values for JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from dynabro_cli.answers.analysis.cells import curves, fractions
from dynabro_cli.answers.analysis.columns import (
    RULE,
    beside,
    differences_note,
    labels_of,
    method_names,
    ordered,
    usual_metric,
)
from dynabro_cli.answers.analysis.diverged import DIVERGED
from dynabro_cli.answers.analysis.metrics import METRICS
from dynabro_cli.answers.analysis.results import Results, cells_of
from dynabro_cli.answers.figures._style import KNOWN
from dynabro_cli.answers.figures.any.timeline import TICKS, masks_of
from dynabro_cli.answers.figures.report.findings import answers, searched
from dynabro_cli.core.errors import DynabroError, SpecError
from dynabro_cli.core.registration import format_value, plugins
from dynabro_cli.experiment.effect import CLOCK, ENTRY
from dynabro_cli.experiment.key import KEY_DIGITS
from dynabro_cli.experiment.label import CELL, OTHERS, command_of
from dynabro_cli.experiment.spec import fields
from dynabro_cli.runs.store.read.queries import query, sweeps_condition
from dynabro_cli.runs.store.tables import HAS_RESULT
from dynabro_cli.runs.store.write.origin import words_of

CURVE_POINTS, ALL_POINTS, FEWEST_POINTS = 100, 50_000, 10
"""Most points of a curve; of all curves together; and the number that each curve keeps in any
case.
"""
TIMELINES, TIMELINE_TICKS, TIMELINE_SPANS = 12, 300, 4_000
"""Most timelines of a task; ticks of each; and most spans, after which a timeline is cut."""
MOST_ABOUT = 12
"""Most sweeps that are described."""
PORTION = 200
"""Runs whose evaluations are read at a time."""
DIGITS = 5
MEANINGS = {"sweep": "name of the sweep", RULE: "aggregator with its pre-aggregators"}

Value = dict[str, Any]


def content(
    results: Results, where: str | None, describe: Callable[[str], str] = lambda sweep: ""
) -> Value:
    """Return everything that a report shows.

    Args:
        results: At least one run with a result.
        where: The condition that chose the runs.
        describe: ``describe(sweep)`` returns the description of a sweep that comes with the
            program; empty for others.

    Returns:
        Values for JSON: ``answers``, ``about`` (of sweeps), ``looks`` (places of colours),
        ``tasks``, ``fields``, ``cells``, ``runs``, ``bars``, ``timelines``, ``sweeps``,
        ``statuses`` and ``searches``. Cells refer to fields, and runs to cells, by their places.
    """
    stored = results.runs.assign(sweep=results.runs["sweep"].fillna(""))
    results = dataclasses.replace(results, runs=stored, planned=stored)
    searches = searched(results)  # it reads all runs again: before other tables fill the memory
    placed = beside(stored, ["sweep"])
    runs = placed.drop_duplicates("id")  # a method without a memory is beside each reading
    runs = runs.assign(
        cell=pd.factorize(cells_of(runs) + runs["attack"] + runs[ENTRY] + runs[CLOCK])[0]
    )
    compared = answers(results)
    first: dict[str, str] = {}
    for answer in compared:
        first.setdefault(answer["task"], answer["sweep"])
    tasks = [
        _task(task, runs[runs["task"] == task], first.get(task))
        for task in dict.fromkeys([*first, *map(str, runs["task"])])
    ]
    names = [
        name
        for name in (*CELL[:2], RULE, *CELL[2:], *OTHERS)
        if any(name in row["fields"] for row in tasks)
    ]
    columns = [_field(name, runs) for name in (*names, "sweep")]
    cells = _cells(dataclasses.replace(results, runs=runs), columns, tasks, stored)
    once = dataclasses.replace(results, runs=stored.drop_duplicates("id"))
    return {
        "answers": compared,
        "about": _about(results, describe),
        "looks": {
            label: place for label, place in KNOWN.items() if label in set(method_names(runs))
        },
        "tasks": tasks,
        "fields": [
            {key: column[key] for key in ("name", "label", "meaning", "values")}
            for column in columns
        ],
        "cells": cells,
        "runs": _runs(runs, tasks),
        "bars": _bars(once),
        "timelines": _timelines(once),
        "sweeps": _sweeps(placed.drop_duplicates(["id", "sweep"]).merge(runs[["id", "cell"]])),
        "statuses": _statuses(results, where),
        "searches": searches,
    }


def _task(task: str, runs: pd.DataFrame, sweep: str | None) -> Value:
    """Return a task with its metric, the fields in which its runs differ, and the settings that all
    of them share.

    Charts begin with the sweep of the task's first answer, without an answer with the largest;
    ``sweep`` is None if the answer compares several.
    """
    metric = usual_metric(runs)
    varied = labels_of(runs)
    sweep = runs["sweep"].mode()[0] if sweep is None else sweep
    shown = runs[runs["sweep"] == sweep]
    if shown.empty:
        sweep, shown = None, runs
    common = [
        name
        for name in (*CELL, *OTHERS)
        if name not in ("seed", *varied) and runs[name].nunique(dropna=False) == 1
    ]
    shared = [
        (name.replace("_", " "), format_value(runs[name].iloc[0]))
        for name in common
        if pd.notna(runs[name].iloc[0])
    ]
    return {
        "name": task,
        "metric": metric,
        "label": METRICS[metric].label,
        "fields": varied,
        "sweep": sweep,
        "notes": differences_note(shown, varied),
        "common": shared,
    }


def _field(name: str, runs: pd.DataFrame) -> Value:
    """Return a column with its values in their order; ``places`` has the place of each."""
    values = ordered(runs, name)
    meaning = MEANINGS[name] if name in MEANINGS else fields()[name].column
    texts = [_text(value) for value in values]
    if name == "method":
        labels = dict(zip(runs[name], method_names(runs), strict=True))
        texts = [labels[value] for value in values]
    places = {value if pd.notna(value) else None: place for place, value in enumerate(values)}
    return {
        "name": name,
        "label": name.replace("_", " "),
        "meaning": meaning,
        "values": texts,
        "places": places,
    }


def _text(value: Any) -> str:
    return "" if value is None or pd.isna(value) else format_value(value)


def _cells(
    results: Results, columns: Sequence[Value], tasks: Sequence[Value], stored: pd.DataFrame
) -> list[Value]:
    """Return one entry per cell, that is, for all runs that differ in their seed only; ``stored``
    has their own texts.
    """
    results = dataclasses.replace(results, runs=results.runs.drop_duplicates(["cell", "seed"]))
    lines = _curves(results, tasks)
    numbers = {task["name"]: place for place, task in enumerate(tasks)}
    first_runs = results.runs.drop_duplicates("cell")
    names = ["cell", "id", *dict.fromkeys(["task", *(column["name"] for column in columns)])]
    firsts = {row["cell"]: row for row in first_runs[names].to_dict("records")}
    texts = stored.loc[stored["id"].isin(first_runs["id"]), ["id", *fields()]].to_dict("records")
    scored = results.runs[
        ["cell", "status", *dict.fromkeys(METRICS[task["metric"]].final for task in tasks)]
    ]
    named = [plugin.name for plugin in plugins.loaded()]
    commands = {row["id"]: command_of(row, named) for row in texts}
    rows = []
    for cell, cell_runs in scored.groupby("cell", sort=True):
        first = firsts[cell]
        task = numbers[str(first["task"])]
        scores = cell_runs[METRICS[tasks[task]["metric"]].final]
        places = [
            column["places"][first[column["name"]] if pd.notna(first[column["name"]]) else None]
            for column in columns
        ]
        rows.append(
            {
                "task": task,
                "at": places,
                "mean": _number(scores.mean(skipna=False)),
                "std": _number(scores.std(ddof=1, skipna=False)) if len(cell_runs) > 1 else None,
                "n": len(cell_runs),
                "diverged": int((cell_runs["status"] == DIVERGED).sum()),
                "command": commands[first["id"]],
                "curve": lines.get(cell, []),
            }
        )
    return rows


def _curves(results: Results, tasks: Sequence[Value]) -> dict[Any, list[Any]]:
    """Return budgets, means and standard deviations of each cell, thinned so that a report stays
    small.
    """
    by_cell = {}
    most = max(
        FEWEST_POINTS, min(CURVE_POINTS, ALL_POINTS // max(1, results.runs["cell"].nunique()))
    )
    for task, chosen in _portions(results.runs, tasks):
        part = Results(chosen, chosen, "", results.engine, results.identities, results.window)
        for cell, line in curves(part, ["cell"], METRICS[task["metric"]].along).groupby("cell"):
            places = sorted({round(place * (len(line) - 1) / (most - 1)) for place in range(most)})
            kept = line.iloc[places]
            by_cell[cell] = [
                [int(budget) for budget in kept["budget"]],
                [_number(mean) for mean in kept["mean"]],
                [_number(std, 3) for std in kept["std"]],
            ]
    return by_cell


def _portions(runs: pd.DataFrame, tasks: Sequence[Value]) -> Iterator[tuple[Value, pd.DataFrame]]:
    """Yield all runs of some cells of a task at a time, because evaluations need much memory."""
    for task in tasks:
        chosen = runs[runs["task"] == task["name"]].sort_values("cell", kind="stable")
        portion = chosen["cell"].map(chosen["cell"].value_counts().sort_index().cumsum() // PORTION)
        yield from ((task, part) for _, part in chosen.groupby(portion))


def _runs(runs: pd.DataFrame, tasks: Sequence[Value]) -> list[list[Any]]:
    """Return rows of id, key, cell, seed, status, final score, rounds, seconds, start time, and
    tags with the note.
    """
    final = {task["name"]: METRICS[task["metric"]].final for task in tasks}
    shown = ["id", "run_key", "task", "cell", "seed", "status", "rounds", "wall_seconds"]
    shown += ["started_at", "tags", "note", *dict.fromkeys(final.values())]
    return [
        [
            int(row["id"]),
            row["run_key"][:KEY_DIGITS],
            int(row["cell"]),
            int(row["seed"]),
            row["status"],
            _number(row[final[row["task"]]]),
            int(row["rounds"]),
            _number(row["wall_seconds"], 4),
            str(row["started_at"])[:19],
            words_of(row),
        ]
        for row in runs[shown].to_dict("records")
    ]


def _bars(results: Results) -> list[list[Any]]:
    """Return task, switching strategy, fraction of Byzantine workers, and share of rounds."""
    parts = []
    for _, runs in results.runs.groupby(["task", "switching"], sort=False):
        # other numbers of workers, say, have no common histogram
        with contextlib.suppress(SpecError):
            parts.append(fractions(dataclasses.replace(results, runs=runs), ("task", "switching")))
    bars = (
        pd.concat(parts)
        if parts
        else pd.DataFrame(columns=["task", "switching", "fraction", "share"])
    )
    columns = zip(bars["task"], bars["switching"], bars["fraction"], bars["share"], strict=True)
    return [
        [task, switching, _number(fraction, 4), _number(share, 4)]
        for task, switching, fraction, share in columns
    ]


def _timelines(results: Results) -> list[Value]:
    """Return the first ticks of one run of each task and switching strategy: spans of worker, first
    tick, end and state.
    """
    timelines = []
    first = results.runs.drop_duplicates(["task", "switching"])
    for _, chosen in first.groupby("task", sort=False):
        for run in chosen.head(TIMELINES).to_dict("records"):
            clock = "round" if run["clock"] == "round" else "budget"
            ticks = min(
                TIMELINE_TICKS, int(run["rounds"] if clock == "round" else run["budget_spent"])
            )
            try:
                byzantine = masks_of(results, run, ticks)
            # a strategy of a plugin or of another version, or rows that db check reports
            except DynabroError:
                continue
            spans = [
                span
                for worker, row in enumerate(byzantine[:ticks].T.tolist(), 1)
                for span in _spans(worker, row)
            ]
            labels = {
                "task": run["task"],
                "switching": run["switching"],
                "run": int(run["id"]),
                "seed": int(run["seed"]),
            }
            workers = {"workers": int(run["workers"]), "ticks": ticks, "unit": TICKS[clock]}
            timelines.append(labels | workers | {"spans": spans[:TIMELINE_SPANS]})
    return timelines


def _spans(worker: int, row: Sequence[bool]) -> list[list[int]]:
    """Return [worker, first tick, end] of each time in which a worker is Byzantine."""
    edges = [
        tick
        for tick in range(len(row) + 1)
        if (tick < len(row) and row[tick]) != (tick > 0 and row[tick - 1])
    ]
    return [[worker, start, end] for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _sweeps(runs: pd.DataFrame) -> list[list[Any]]:
    """Return sweep, task, runs, cells, seeds, diverged runs and seconds of each sweep and task."""
    rows = []
    for (sweep, task), part in runs.groupby(["sweep", "task"], sort=False):
        counts = [
            len(part),
            part["cell"].nunique(),
            part["seed"].nunique(),
            int((part["status"] == DIVERGED).sum()),
        ]
        rows.append([sweep, task, *counts, round(part["wall_seconds"].sum())])
    return rows


def _about(results: Results, describe: Callable[[str], str]) -> list[Value]:
    """Return the name, the description and the text of each sweep, as far as they are known, the
    largest first; the last text is shown.
    """
    names = [name for name in results.runs["sweep"].value_counts().index if name]
    stored = query(
        results.engine, "SELECT name, yaml FROM sweeps WHERE yaml IS NOT NULL ORDER BY id"
    ).frame()
    texts = dict(zip(stored["name"], stored["yaml"], strict=True))
    rows = []
    for name in names[:MOST_ABOUT]:
        text = texts.get(name, "")
        match = re.search(r"^description:\s*(.+)$", text, flags=re.MULTILINE)
        about = match[1].strip(" '\"") if match else describe(name)
        if about or text:
            rows.append({"name": name, "description": about, "text": text})
    return rows


def _statuses(results: Results, where: str | None) -> dict[str, int]:
    """Return the number of runs without a result by status; they are not in the report."""
    within = sweeps_condition(results.engine, None, results.sweeps)
    condition = " AND ".join(f"({text})" for text in (f"NOT ({HAS_RESULT})", where, within) if text)
    counts = query(
        results.engine,
        f"SELECT status, COUNT(*) AS n FROM runs WHERE {condition} GROUP BY status ORDER BY status",
    ).frame()
    return {
        str(status): int(count) for status, count in zip(counts["status"], counts["n"], strict=True)
    }


def _number(value: Any, digits: int = DIGITS) -> float | None:
    """Return a number with a few digits; None if it is not finite."""
    return float(f"{value:.{digits}g}") if value is not None and math.isfinite(value) else None


def title_of(runs: Mapping[str, Any] | pd.DataFrame) -> str:
    """Return a title: the sweep or the task if there is only one, or their numbers."""
    sweeps = [name for name in dict.fromkeys(runs["sweep"]) if isinstance(name, str) and name]
    tasks = list(dict.fromkeys(map(str, runs["task"])))
    if len(sweeps) == 1:
        return sweeps[0]
    return tasks[0] if len(tasks) == 1 else f"{len(sweeps)} sweeps on {len(tasks)} tasks"
