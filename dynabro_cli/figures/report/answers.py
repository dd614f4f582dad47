"""The answers of a report: matrices that show the best method or rule under each attack, for each
compared field.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from dynabro_cli.analysis.columns import COLUMNS, RULE, TUNING, name_of
from dynabro_cli.analysis.ranking import DEFENCE, Ranking, number, ranking
from dynabro_cli.analysis.results import Results
from dynabro_cli.errors import DynabroError
from dynabro_cli.experiment.effect import READING

MOST_SWEEPS, MOST_CELLS = 24, 4000
"""Most sweeps with answers, and most cells of a matrix."""
BOTH = f"{name_of('pre_aggregators')} and {name_of('aggregator')}"


def answers(results: Results) -> list[dict[str, Any]]:
    """Return a comparison for each sweep and task, and for each field that can be compared there;
    the usual one first.

    Each has ``sweep``, ``task``, ``label`` (the compared fields), ``sentence``, ``notes``,
    ``columns`` and ``panels``: a title, and rows of a label, cells [text, best, tied, tip], the
    worst, and the mean rank.
    """
    groups = [
        (str(sweep), str(task), own)
        for (sweep, task), own in results.runs.groupby(["sweep", "task"], sort=False)
    ]
    if len(results.sweeps) > 1:
        groups = [
            ("", str(task), own) for task, own in results.runs.groupby("task", sort=False)
        ] + groups
    found: list[dict[str, Any]] = []
    for sweep, task, own in groups[:MOST_SWEEPS]:
        several = results.sweeps if not sweep else ()
        part = dataclasses.replace(results, runs=own, planned=own, sweeps=several)
        varied = [
            name for name in COLUMNS if name != READING and own[name].nunique(dropna=False) > 1
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
            one = _shown(ranked) | {"sweep": sweep, "task": task, "label": label}
            if not any({**one, "label": ""} == {**other, "label": ""} for other in found):
                found.append(one)
    return found


def _shown(ranked: Ranking) -> dict[str, Any]:
    panels = []
    for title in ranked.panels:
        cells = {(cell.row, cell.column): cell for cell in ranked.panel(title).itertuples()}
        columns = [name for name in ranked.columns if any(column == name for _, column in cells)]
        rows = []
        for row in ranked.rows:
            own = [cells.get((row, column)) for column in columns]
            first: Any = next((cell for cell in own if cell is not None), None)
            if first is not None:
                worst = [f"{first.worst:.3f}", str(first.worst_column)]
                rows.append([row, [_cell(cell) for cell in own], worst, f"{first.mean_rank:.2g}"])
        panels.append({"title": title, "columns": columns, "rows": rows})
    return {"sentence": ranked.sentence, "notes": ranked.notes, "panels": panels}


def _cell(cell: Any) -> list[Any] | None:
    """Return text, best, tied and the number of runs of a cell; None for an empty cell."""
    if cell is None:
        return None
    mean, _, spread = number(cell, " ", mark="").partition(" ")
    return [mean, spread, int(cell.best), int(cell.tied), int(cell.n), int(cell.diverged)]
