"""Tables as pictures and as HTML, and lines of cells that fit a width."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from html import escape as escape_html

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from dynabro_cli.answers.figures._style import NOTE_SIZE, PAGE, note_size, width_of

LINE_HEIGHT, MORE, CHARACTER = 0.22, 0.6, 0.0084
"""Height of a row in inches, of each further line relative to it, and width of a letter per point
of its size.
"""
SIZE = 7.0
WORD = re.compile(r"\s*-*[^\s:-]+[:-]*|\s*[:-]+")
"""A word, or a part of a word up to a hyphen or colon, with the spaces before it: lines are not
broken within it.
"""
SIGN = r"(?:[,:+=/_](?!\d)|$)"
"""A sign behind which a long word is broken."""
HTML = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="dynabro plot">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 1rem; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: .25rem .6rem; text-align: left; border-bottom: 1px solid #8888; white-space: nowrap; }}
p {{ font-size: .85rem; max-width: 75ch; }}
@media (max-width: 600px) {{ td, th {{ padding: .25rem .2rem; font-size: .8rem; white-space: normal; }} }}
</style>
<div><table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table></div>
<p>{notes}</p>
</html>
"""  # noqa: E501
BOLD = 1.12
"""Width of a letter of the head, relative to others."""


def draw_table(table: pd.DataFrame, title: str) -> Figure:
    """Return a picture of a table of texts, as wide as a page; long cells are broken into lines."""
    size, width = note_size(SIZE), width_of(PAGE)
    texts = [list(table.columns), *table.astype(str).values.tolist()]
    texts = broken(texts, int(width / (CHARACTER * size)))
    heights = [1 + MORE * max(text.count("\n") for text in row) for row in texts]
    widths = widths_of(texts)
    figure = Figure(
        figsize=(width, LINE_HEIGHT * size / SIZE * (sum(heights) + 2)), layout="constrained"
    )
    axes = figure.subplots()
    axes.set_axis_off()
    drawn = axes.table(
        texts, colWidths=[width / sum(widths) for width in widths], cellLoc="left", bbox=Bbox.unit()
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(size)
    for (row, _), cell in drawn.get_celld().items():
        cell.set_height(heights[row] / sum(heights))
        cell.set(linewidth=0.5, edgecolor="#999999")
        cell.visible_edges = "TB" if row == 0 else "B"
        if row == 0:
            cell.get_text().set_fontweight("bold")
    figure.suptitle(title, fontsize=note_size(NOTE_SIZE + 0.5), color="#333333")
    return figure


def broken(texts: Sequence[Sequence[str]], most: int) -> list[list[str]]:
    """Return the texts with lines broken so that a row has at most ``most`` letters: the widest
    columns are narrowed first.
    """
    columns = range(len(texts[0]))
    words = [
        ["\n".join(word.strip() for word in WORD.findall(text)) for text in row] for row in texts
    ]
    widths, least = widths_of(texts), widths_of(words)
    while sum(widths) > most and widths != least:
        widest = max(
            (column for column in columns if widths[column] > least[column]),
            key=lambda column: widths[column],
        )
        widths[widest] -= 1
    head = [
        in_lines(text, int((width - 2) / BOLD))
        for text, width in zip(texts[0], widths, strict=True)
    ]
    return [
        head,
        *(
            [in_lines(text, width - 2) for text, width in zip(row, widths, strict=True)]
            for row in texts[1:]
        ),
    ]


def widths_of(texts: Sequence[Sequence[str]]) -> list[int]:
    """Return the letters that each column needs, and two more; the first row is the head, which is
    bold.
    """
    return [
        2
        + max(
            math.ceil(len(line) * (1 if row else BOLD))
            for row, cells in enumerate(texts)
            for line in cells[column].split("\n")
        )
        for column in range(len(texts[0]))
    ]


def in_lines(text: str, letters: int, *, cut: bool = False) -> str:
    """Return a text in lines of at most ``letters`` letters; ``WORD`` says where it is broken.

    With ``cut``, a longer word is broken at the signs of a component's text, or else anywhere.
    """
    most = max(1, letters)
    part = re.compile(rf".{{1,{most}}}?{SIGN}|.{{1,{most}}}")
    lines = []
    for whole in text.split("\n"):
        line = ""
        for word in WORD.findall(whole):
            for piece in part.findall(word) if cut and len(word.strip()) > letters else [word]:
                if line and len(line + piece) > letters:
                    lines.append(line)
                    line = piece.lstrip()
                else:
                    line += piece
        lines.append(line)
    return "\n".join(lines)


def as_table(numbers: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return final numbers as a table of texts: one row per series and one column per place, the
    last but one of ``by``.

    A cell is the mean, with the standard deviation over seeds if there are several.
    """
    *_, x, series = by
    cells = [
        f"{mean:.3g}" if pd.isna(std) else f"{mean:.3f} \N{PLUS-MINUS SIGN} {std:.3f}"
        for mean, std in zip(numbers["mean"], numbers["std"], strict=True)
    ]
    named = numbers.assign(cell=cells)
    rows = [name for name in by if name != x]
    wide = named.pivot(index=rows, columns=x, values="cell").reindex(
        columns=list(dict.fromkeys(named[x]))
    )
    wide = (
        wide.reindex(list(dict.fromkeys(named[rows].itertuples(index=False, name=None))))
        if len(rows) > 1
        else wide
    )
    table = wide.fillna("-").reset_index().astype(str)
    return table.rename(
        columns={series: "", **{name: name.replace("_", " ") for name in rows if name != series}}
    )


def in_html(
    table: pd.DataFrame, title: str, notes: Sequence[str], bold: Collection[tuple[int, int]] = ()
) -> str:
    """Return a table of texts as a page of HTML, to look at or to copy from."""
    head = "".join(f"<th>{escape_html(str(name))}</th>" for name in table.columns)
    rows = [
        "".join(
            f"<td><b>{escape_html(text)}</b></td>"
            if (place, column) in bold
            else f"<td>{escape_html(text)}</td>"
            for column, text in enumerate(map(str, row))
        )
        for place, row in enumerate(table.values.tolist())
    ]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    lines = "".join(f"<br>{escape_html(line)}" for line in notes)
    return HTML.format(
        title=escape_html(title), head=head, body=body, notes=lines.removeprefix("<br>")
    )
