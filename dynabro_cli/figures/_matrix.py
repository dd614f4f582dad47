"""A matrix of numbers as a coloured table: what the plot ``heatmap`` and the figure ``digits-worst-case`` share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

SHARES = (0.0, 1.0)
"""The limits of numbers that are accuracies, which are written without the zero before the point."""


def draw_matrix(
    panel: Axes,
    values: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    notes: Sequence[Sequence[str]],
    limits: tuple[float, float],
) -> None:
    """Draw numbers in their colours, with a word under each.

    Args:
        panel: Where.
        values: [rows, columns]; NaN is left empty.
        notes: A word for each, empty for none.
        limits: The numbers at the ends of the colours.
    """
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            continue
        dark = limits[1] > limits[0] and (value - limits[0]) / (limits[1] - limits[0]) < 0.55
        text = f"{value:.3f}".removeprefix("0") if limits == SHARES else f"{value:.3g}"
        lines = f"{text}\n{notes[row][column]}".strip()
        panel.text(column, row, lines, ha="center", va="center", fontsize=5.5, color="white" if dark else "black")
    panel.imshow(values, cmap="cividis", vmin=limits[0], vmax=limits[1], aspect="auto")
    panel.grid(visible=False)
