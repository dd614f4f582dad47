"""Tables as pictures."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from dynabro_cli.figures._style import NOTE_SIZE, PAGE

LINE_HEIGHT, CHARACTER = 0.24, 0.068
"""Height of a table's line and width of a letter, in inches."""


def draw_table(table: pd.DataFrame, title: str) -> Figure:
    """Return a picture of a table of texts, with columns as wide as their contents; a line break makes a row higher."""
    texts = [list(table.columns), *table.astype(str).values.tolist()]
    heights = [max(text.count("\n") + 1 for text in row) for row in texts]
    widths = [max(len(line) for row in texts for line in row[column].split("\n")) + 2 for column in range(len(texts[0]))]
    figure = Figure(figsize=(max(PAGE, CHARACTER * sum(widths)), LINE_HEIGHT * (sum(heights) + 2)), layout="constrained")
    axes = figure.subplots()
    axes.set_axis_off()
    drawn = axes.table(texts, colWidths=[width / sum(widths) for width in widths], cellLoc="left", bbox=Bbox.unit())
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(7)
    for (row, _), cell in drawn.get_celld().items():
        cell.set_height(heights[row] / sum(heights))
        cell.set(linewidth=0.5, edgecolor="#999999")
        cell.visible_edges = "TB" if row == 0 else "B"
        if row == 0:
            cell.get_text().set_fontweight("bold")
    figure.suptitle(title, fontsize=NOTE_SIZE + 0.5, color="#333333")
    return figure
