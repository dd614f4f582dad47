"""Tables as pictures."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from dynabro_cli.figures._style import NOTE_SIZE, PAGE

LINE_HEIGHT, CHARACTER = 0.24, 0.068
"""Of a table's line, and of a letter's room, in inches."""


def draw_table(table: pd.DataFrame, title: str) -> Figure:
    """A picture of a table of texts, its columns as wide as what is in them; a line break in a cell makes its row higher."""
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
