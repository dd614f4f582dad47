"""The plot ``matrix``."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh

from dynabro_cli.answers.analysis.cells import ACCURACIES
from dynabro_cli.answers.analysis.columns import having, metric_of
from dynabro_cli.answers.analysis.diverged import CROSS, mark
from dynabro_cli.answers.analysis.ranking import SPREAD, TIED, as_texts, number, ranking
from dynabro_cli.answers.analysis.results import Results
from dynabro_cli.answers.figures._api import Choice, Drawn, plot
from dynabro_cli.answers.figures._fit import MOST_NAMES
from dynabro_cli.answers.figures._panels import blank, draw_matrix, finite_limits, write_title
from dynabro_cli.answers.figures._style import PAGE, narrow, note_size, width_of
from dynabro_cli.core.errors import SpecError

LINE, LETTER = 0.021, 0.0085
"""Height of a line of text, and width of a letter, in inches per point of its size."""
SIZE, SMALL = 6.5, 5.5
RIGHT = ("worst", "mean rank")
"""Columns at the right."""


@plot("matrix")
def draw(results: Results, choice: Choice) -> Drawn:
    """The answer to "which is best under which attack": rows are compared (--hue), columns are
    adversaries (--x).

    By default the rows are methods, pre-aggregators and aggregators, as far as they vary, and the
    columns attacks and switching strategies; --facet, and any other difference between the runs,
    has a matrix per value. A cell is the mean over seeds with half of its 95% interval. The best
    cell of a column is bold, and cells that paired t-tests do not separate from it are marked. The
    worst column and the mean rank of a row are at the right.
    """
    if choice.free_y:
        raise SpecError("a matrix shows numbers by colour, on one scale. Try: no --free-y")
    metric = metric_of(results, choice.metric)
    results = having(results, metric)
    ranked = ranking(results, choice.metric, rows=choice.hue, columns=choice.x, panels=choice.facet)
    ranked = ranked._replace(
        rows=choice.arranged(ranked.rows), columns=choice.arranged(ranked.columns)
    )
    parts = [(title, ranked.panel(title)) for title in ranked.panels]
    rows = [[name for name in ranked.rows if (part["row"] == name).any()] for _, part in parts]
    columns = [
        [name for name in ranked.columns if (part["column"] == name).any()] for _, part in parts
    ]
    size = note_size(SIZE)
    most = max(map(len, columns))
    names = [choice.label(name) for name in ranked.rows]
    width = width_of(PAGE) - (0 if narrow() else 0.8)
    room = width - min(LETTER * size * max(map(len, names)), MOST_NAMES * width)
    letters = room / (LETTER * size * (most + len(RIGHT)))
    words = [[choice.label(name).replace(", ", "\n") for name in part] for part in columns]
    row_height = LINE * size * (2.6 if letters > 6 else 1.3)
    same = len(parts) > 1 and all(part == rows[0] for part in rows)
    small = same and letters <= 6 and size == SIZE and metric.final in ACCURACIES
    beside = 2 if small else 1
    size = SMALL if small else size
    height = 0.8 + sum(0.5 + row_height * len(part) for part in rows[::beside])
    figure, axes = blank(
        -(-len(parts) // beside),
        beside,
        height=height,
        height_ratios=[len(part) for part in rows[::beside]],
    )
    for panel in list(axes.flat)[len(parts) :]:
        panel.set_axis_off()
    limits = finite_limits(ranked.cells["mean"])
    for panel, (title, part), down, across, heads in zip(
        list(axes.flat)[: len(parts)], parts, rows, columns, words, strict=True
    ):
        mesh = _draw(panel, part, down, across, limits, letters=0 if small else letters, size=size)
        panel.xaxis.tick_top()
        panel.set_xticks(
            range(len(across) + 2), [*heads, *(("\n".join(name.split())) for name in RIGHT)]
        )
        panel.tick_params(axis="x", length=0, labelsize=size)
        panel.set_yticks(range(len(down)), [choice.label(name) for name in down])
        panel.tick_params(axis="y", length=0, labelsize=size)
        if small:
            panel.tick_params(axis="y", labelleft=panel in axes[:, 0])
        if title:
            panel.set_title(choice.label(title), loc="left")
    notes = ranked.notes
    if letters <= 6:
        notes = [line.replace(SPREAD, "mean, in hundredths" if small else "mean") for line in notes]
    if small:
        notes = [line.replace(f"{CROSS}3/5: 3 of 5", f"{CROSS}: some") for line in notes]
        notes = [line for line in notes if not line.startswith(TIED)]
    if not narrow():
        figure.colorbar(
            mesh, ax=list(axes.flat), label=metric.title, shrink=min(0.9, 3.0 / height), pad=0.02
        )
    what = f"{metric.title}, best of a column in bold; {'; '.join(notes)}"
    write_title(figure, results, None, what=what)
    table, bold = as_texts(ranked, choice.label)
    return Drawn(figure, ranked.cells, table, bold, ranked.notes)


def _draw(
    panel: Axes,
    cells: pd.DataFrame,
    rows: list[str],
    columns: list[str],
    limits: tuple[float, float],
    *,
    letters: float,
    size: float,
) -> QuadMesh:
    spread, small, readable = letters > 6, letters == 0, letters > 2 or letters == 0
    values = np.full((len(rows), len(columns) + len(RIGHT)), np.nan)
    words = [["" for _ in values[0]] for _ in rows]
    bold = set()
    for cell in cells.itertuples():
        place = rows.index(cell.row), columns.index(cell.column)
        values[place] = cell.mean
        text = number(cell, "\n" if spread else None) + mark(cell, "\n" if spread else "")
        if small:
            text = CROSS if cell.diverged else f"{100 * cell.mean:.0f}"
        words[place[0]][place[1]] = text
        bold |= {place} if cell.best else set()
    for line, name in enumerate(rows):
        cell = cells[cells["row"] == name].iloc[0]
        values[line, -2] = cell["worst"]
        where = f"\n{cell['worst_column']}" if spread and len(cell["worst_column"]) <= 10 else ""
        shown = f"{cell['worst']:.3f}" if spread else f"{cell['worst']:.2f}".removeprefix("0")
        words[line][-2] = f"{100 * cell['worst']:.0f}" if small else shown + where
        panel.text(
            len(columns) + 1,
            line,
            f"{cell['mean_rank']:{'.0f' if small else '.2g'}}" if readable else "",
            ha="center",
            va="center",
            fontsize=size,
        )
    words = words if readable else [["" for _ in values[0]] for _ in rows]
    mesh = draw_matrix(panel, values, words, limits, bold=bold, size=size)[1]
    panel.axvline(len(columns) - 0.5, color="white", linewidth=3)
    for side in panel.spines.values():
        side.set_visible(False)
    return mesh
