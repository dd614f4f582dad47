"""The plot ``heatmap``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh

from dynabro_cli.answers.analysis.cells import final_values, worst_of
from dynabro_cli.answers.analysis.columns import (
    COLUMNS,
    RULE,
    axis_label,
    column_of,
    having,
    metric_of,
    name_of,
    naming,
    ordered,
    problem_fields,
    short,
    tick,
    with_columns,
)
from dynabro_cli.answers.analysis.diverged import mark, mark_note
from dynabro_cli.answers.analysis.results import Results
from dynabro_cli.answers.figures._api import Choice, Drawn, plot
from dynabro_cli.answers.figures._panels import draw_matrix, finite_limits, panel_grid, write_title
from dynabro_cli.answers.figures._style import narrow
from dynabro_cli.answers.figures.any._choice import apart, panels_of, whole_rules
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.effect import READING

MIXED = ("precision", "validation")
"""Further fields that define a problem: the worst over them compares different problems."""
MOST_LETTERS = 11
"""A longer word under a number is broken at its first hyphen."""


@plot("heatmap")
def draw(results: Results, choice: Choice) -> Drawn:
    """The worst case over attacks: one column per --x (default switching), one row per --hue
    (default the rule).

    A cell is the worst mean over seeds among its runs, which may differ in what an adversary or a
    defender chooses; the title names these fields. Runs of different problems, such as two budgets,
    are refused. A row without runs of some attack has fewer to be the worst of, and the title says
    so. Under the number is the attack, or the other difference of the worst run. One panel per
    --facet (default method, if there are several).
    """
    if choice.free_y:
        raise SpecError("a heatmap shows numbers by colour, on one scale. Try: no --free-y")
    metric = metric_of(results, choice.metric)
    results = having(results, metric)
    choice = dataclasses.replace(choice, hue=choice.hue or "aggregator")
    choice = whole_rules(results.runs, choice)
    results = dataclasses.replace(
        results, runs=with_columns(results.runs, (choice.x, choice.hue, choice.facet))
    )
    x = column_of("x", choice.x or "switching")
    y = column_of("hue", choice.hue or RULE)
    facet = column_of("facet", choice.facet) if choice.facet else _method(results, (x, y))
    apart(x=x, hue=y, facet=facet)
    shown = [*([facet] if facet else []), y, x]
    # the attack comes first, because the first hidden field is the word under a number
    hidden = naming(results.runs, shown, ("attack", READING, *COLUMNS))
    mixed = [*problem_fields(results.runs, shown), *(name for name in hidden if name in MIXED)]
    if mixed:
        values = ", ".join(map(str, ordered(results.runs, mixed[0])[:4]))
        raise SpecError(
            f"the runs differ in {' and '.join(map(name_of, mixed))} ({values}): no worst case "
            "is one of both. "
            f"Try: --facet {mixed[0]}, or --where with one value"
        )
    cells = final_values(results, [*shown, *hidden], metric.final)
    numbers = cells[cells.index == worst_of(cells, shown, higher=metric.higher)]
    panels = panels_of(results.runs, numbers, facet, choice)
    columns, rows = (choice.arranged(ordered(results.runs, name)) for name in (x, y))
    long = max(len(str(value)) for value in rows) > 24
    figure, axes = panel_grid(
        len(panels),
        height=0.9 + 0.33 * len(rows),
        across=1 if long else 2 if len(columns) > 3 else 3,
    )
    limits = finite_limits(numbers["mean"])
    for panel, (title, _, part) in zip(axes, panels, strict=True):
        mesh = draw_cells(panel, part.set_index([y, x]), rows, columns, hidden, limits)
        panel.set_xticks(
            range(len(columns)),
            [choice.label(value, tick(results.runs, x, value)) for value in columns],
        )
        panel.set_yticks(range(len(rows)), [short(choice.label(value), 44) for value in rows])
        panel.set(title=short(title), xlabel=axis_label(results.runs, x))
    if not narrow():
        shrink = min(0.9, 4.0 / figure.get_figheight())
        figure.colorbar(mesh, ax=axes, label=metric.title, shrink=shrink, pad=0.02)
    over = f"worst over {', '.join(map(name_of, hidden))}" if hidden else ""
    if hidden and cells.groupby(shown, sort=False).size().nunique() > 1:
        over += ", of which cells have different numbers"
    what = ", ".join(filter(None, (metric.title, over, mark_note(numbers["diverged"].sum()))))
    write_title(figure, results, numbers.assign(diverged=0), what=what, shown=[*shown, *hidden])
    return Drawn(figure, numbers)


def _method(results: Results, shown: Sequence[str]) -> str | None:
    """Return the facet that is not asked for: tasks, or else methods, or else the attack's
    readings.
    """
    names = ("task", "method", READING)
    return next(
        (name for name in names if name not in shown and results.runs[name].nunique() > 1), None
    )


def draw_cells(
    panel: Axes,
    part: pd.DataFrame,
    rows: Sequence[Any],
    columns: Sequence[Any],
    hidden: Sequence[str],
    limits: tuple[float, float],
) -> QuadMesh:
    """Draw the cells of a panel: the mean, the mark of diverged runs, and the first hidden field.

    Args:
        panel: The panel.
        part: Its cells, indexed by row and column.
        rows: Values of the rows, from the top.
        columns: Values of the columns.
        hidden: Fields that distinguish the runs of a cell.
        limits: The numbers at the ends of the colours.
    """
    values = np.full((len(rows), len(columns)), np.nan)
    words = [[""] * len(columns) for _ in rows]
    for (row, column), cell in part.iterrows():
        place = rows.index(row), columns.index(column)
        values[place] = cell["mean"]
        name = short(str(cell[hidden[0]]).partition(":")[0], 20) if hidden else ""
        if len(name) > MOST_LETTERS:
            name = name.replace("-", "-\n", 1)
        words[place[0]][place[1]] = (
            f"{cell['mean']:.3g}{mark(cell, ' ' if name else chr(10))}\n{name}".strip()
        )
    return draw_matrix(panel, values, words, limits)[1]
