"""A matrix of numbers as a coloured table, for the plot ``heatmap`` and the figure ``digits-worst-case``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh

from dynabro_cli.figures._style import note_size

SHARES = (0.0, 1.0)
"""Limits of numbers that are accuracies, which are written without the zero before the point."""


def draw_matrix(
    panel: Axes,
    values: np.ndarray[Any, np.dtype[np.float64]],
    notes: Sequence[Sequence[str]],
    limits: tuple[float, float],
    widths: Sequence[float] | None = None,
    *,
    texts: Collection[int] | None = None,
    words: Sequence[Sequence[str]] | None = None,
    bold: Collection[tuple[int, int]] = (),
    size: float = 5.5,
) -> tuple[list[float], QuadMesh]:
    """Draw numbers in their colours, with a word under each; return the positions of the columns, and the coloured cells.

    Args:
        panel: The panel; the rows are at 0, 1, ..., from the top.
        values: [rows, columns]; NaN is left empty.
        notes: A word for each, empty for none.
        limits: The numbers at the ends of the colours.
        widths: Widths of the columns; 1 by default.
        texts: The columns whose numbers are written; all by default.
        words: What is written for each number; by default the number with three digits.
        bold: Places of the numbers in bold, [row, column].
        size: Size of the text in points.
    """
    edges = np.concatenate([[0.0], np.cumsum(widths or [1.0] * values.shape[1])]) - 0.5
    places = [float(place) for place in (edges[:-1] + edges[1:]) / 2]
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value) or (texts is not None and column not in texts):
            continue
        dark = limits[1] > limits[0] and (value - limits[0]) / (limits[1] - limits[0]) < 0.55
        if words is not None:
            text = words[row][column]
        else:
            text = f"{value:.3f}".removeprefix("0") if limits == SHARES else f"{value:.3g}"
        weight = "bold" if (row, column) in bold else "normal"
        lines = f"{text}\n{notes[row][column]}".strip()
        ink = "white" if dark else "black"
        panel.text(places[column], row, lines, ha="center", va="center", fontsize=note_size(size), color=ink, fontweight=weight)
    rows = np.arange(values.shape[0] + 1) - 0.5
    mesh = panel.pcolormesh(edges, rows, values, cmap="cividis", vmin=limits[0], vmax=limits[1])
    panel.invert_yaxis()
    panel.grid(visible=False)
    return places, mesh
