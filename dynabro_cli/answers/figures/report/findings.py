"""Findings of a report: the best method or rule under each attack, with the differences of pairs,
and the best trials of searches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine

from dynabro_cli.answers.analysis.columns import COLUMNS, RULE, TUNING, name_of, whole_rule
from dynabro_cli.answers.analysis.diverged import share
from dynabro_cli.answers.analysis.layout import DEFENCE
from dynabro_cli.answers.analysis.ranking import Pair, Ranking, number, ranking
from dynabro_cli.answers.analysis.results import Results
from dynabro_cli.answers.analysis.searches import Searches, file_of, numbers_of, read_searches
from dynabro_cli.answers.figures._panels import finite_limits
from dynabro_cli.core.errors import DynabroError, NotFoundError
from dynabro_cli.experiment.effect import READING
from dynabro_cli.runs.store.read.searches import trials_condition

MOST_SWEEPS, MOST_CELLS, MOST_SHADE = 24, 4000, 45
"""Most sweeps with answers, most cells of a matrix, and most of a colour in percent."""
BOTH = f"{name_of('pre_aggregators')} and {name_of('aggregator')}"
MOST_ROWS = 60
"""Most differences of a comparison."""
BEST, MOST_SEARCHES = 10, 60
"""Trials of a table of a search, and most of these tables."""
HEADER = ["under", "A", "B", "pairs", "A - B", "95% interval", "Holm's p"]

Table = dict[str, Any]


def answers(results: Results) -> list[dict[str, Any]]:
    """Return a comparison for each sweep and task, and for each field that can be compared there;
    the usual one first. The sweep with the most runs comes first.

    Each has ``sweep``, ``task``, ``label`` (the compared fields), ``sentence``, ``notes``,
    ``panels``: a title, columns, and rows of a label, cells, the worst cell, and the mean rank; and
    ``differences``.
    """
    groups = [
        (str(sweep), str(task), group)
        for (sweep, task), group in results.runs.groupby(["sweep", "task"], sort=False)
    ]
    if len(results.sweeps) > 1:
        groups = [
            ("", str(task), group) for task, group in results.runs.groupby("task", sort=False)
        ] + groups
    # of several named sweeps, the comparison of all of them has the most runs
    groups.sort(key=lambda group: -len(group[2]))
    kept: list[dict[str, Any]] = []
    for sweep, task, group in groups[:MOST_SWEEPS]:
        several = results.sweeps if not sweep else ()
        part = dataclasses.replace(results, runs=group, planned=group, sweeps=several)
        varied = [
            name for name in COLUMNS if name != READING and group[name].nunique(dropna=False) > 1
        ]
        fields = [whole_rule(name, group) for name in varied if name in (*DEFENCE, *TUNING)]
        for rows in (None, *dict.fromkeys(fields), *(["sweep"] if several else [])):
            try:
                ranked = ranking(part, None, rows=rows, most=MOST_CELLS)
            except DynabroError:  # too many matrices or cells, or no number
                continue
            if len(ranked.rows) < 2:
                continue
            names = [rows] if rows else list(ranked.layout.rows)
            label = " and ".join(map(name_of, names)).replace(BOTH, RULE)
            answer = _shown(ranked) | {"sweep": sweep, "task": task, "label": label}
            if not any({**answer, "label": ""} == {**other, "label": ""} for other in kept):
                kept.append(answer)
    return kept


def _shown(ranked: Ranking) -> dict[str, Any]:
    low, high = finite_limits(ranked.cells["mean"])

    def shade(mean: float) -> int:
        """Return the share of a colour in percent: the ink stays readable on all shades."""
        part = (mean - low) / (high - low) if high > low else 1.0
        return round(MOST_SHADE * min(part, 1.0)) if not math.isnan(part) else 0

    def shown(cell: Any) -> dict[str, Any]:
        mean, _, spread = number(cell, " ", mark="").partition(" ")
        counts = {name: int(getattr(cell, name)) for name in ("best", "tied", "n")}
        words = {"spread": spread, "diverged": share(cell.diverged, cell.n)}
        return {"mean": mean, "shade": shade(cell.mean), **words, **counts}

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
    return {
        "sentence": ranked.sentence,
        "notes": ranked.notes,
        "panels": panels,
        "differences": _differences(ranked.pairs, ranked.tests),
    }


def _differences(pairs: Sequence[Pair], tests: str) -> Table:
    """Return a table of pairs of rows: the mean difference over common seeds, with its interval."""
    rows = [
        [
            ", ".join(filter(None, (pair.panel, pair.column))),
            pair.a,
            pair.b,
            pair.n,
            f"{pair.difference:+.4g}",
            "-" if math.isnan(pair.low) else f"{pair.low:+.3g} to {pair.high:+.3g}",
            "-" if math.isnan(pair.holm) else f"{pair.holm:.2g}",
        ]
        for pair in pairs[:MOST_ROWS]
    ]
    cut = f", the first {MOST_ROWS}" if len(pairs) > MOST_ROWS else ""
    return {
        "caption": f"{len(pairs)} paired differences{cut}; Holm over {tests}",
        "columns": HEADER,
        "rows": rows,
    }


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
