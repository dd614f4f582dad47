r"""Tables: as pictures, as HTML, and in LaTeX with the rules of the package booktabs
(``\usepackage{booktabs}``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from html import escape as escape_html

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from dynabro_cli.figures._style import NOTE_SIZE, PAGE, note_size, width_of

LINE_HEIGHT, MORE, CHARACTER = 0.22, 0.6, 0.0084
"""Height of a row in inches, of each further line relative to it, and width of a letter per point
of its size.
"""
SIZE = 7.0
WORD = re.compile(r"\s*-*[^\s-]+-*|\s*-+")
"""A word, or a part of a word up to a hyphen, with the spaces before it: lines are not broken
within it.
"""
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
MINUS = re.compile(r"(?<![\w.-])-(?=[\d.])")
"""A minus sign before a number; between letters and digits it is a hyphen."""
ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{letter: "\\" + letter for letter in "&%$#_{}"},
    "\N{GREEK SMALL LETTER BETA}": r"$\beta$",
    "\N{GREEK SMALL LETTER DELTA}": r"$\delta$",
    "\N{GREEK SMALL LETTER KAPPA}": r"$\kappa$",
    "\N{GREEK SMALL LETTER LAMDA}": r"$\lambda$",
    "\N{GREEK SMALL LETTER TAU}": r"$\tau$",
    "\N{ALMOST EQUAL TO}": r"$\approx$",
    "\N{INFINITY}": r"$\infty$",
    "\N{PLUS-MINUS SIGN}": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\u2098\u2090\u2093": r"$_{\max}$",
}
"""Letters that LaTeX reads as commands or that its fonts do not have, and how they are written."""

MOST_LETTERS, PARAGRAPH = 45, r"p{0.35\linewidth}"
"""A column with a longer cell is broken into lines; TeX breaks at spaces and hyphens."""
BOLD = 1.12
"""Width of a letter of the head, relative to others."""


def draw_table(table: pd.DataFrame, title: str) -> Figure:
    """Return a picture of a table of texts, as wide as a page; long cells are broken into lines."""
    size, width = note_size(SIZE), width_of(PAGE)
    texts = [list(table.columns), *table.astype(str).values.tolist()]
    texts = _broken(texts, int(width / (CHARACTER * size)))
    heights = [1 + MORE * max(text.count("\n") for text in row) for row in texts]
    widths = _widths(texts)
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


def _broken(texts: Sequence[Sequence[str]], most: int) -> list[list[str]]:
    """Return the texts with lines broken so that a row has at most ``most`` letters: the widest
    columns are narrowed first.
    """
    columns = range(len(texts[0]))
    words = [
        ["\n".join(word.strip() for word in WORD.findall(text)) for text in row] for row in texts
    ]
    widths, least = _widths(texts), _widths(words)
    while sum(widths) > most and widths != least:
        widest = max(
            (column for column in columns if widths[column] > least[column]),
            key=lambda column: widths[column],
        )
        widths[widest] -= 1
    head = [
        _lines(text, int((width - 2) / BOLD)) for text, width in zip(texts[0], widths, strict=True)
    ]
    return [
        head,
        *(
            [_lines(text, width - 2) for text, width in zip(row, widths, strict=True)]
            for row in texts[1:]
        ),
    ]


def _widths(texts: Sequence[Sequence[str]]) -> list[int]:
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


def _lines(text: str, letters: int) -> str:
    """Return a text in lines of at most ``letters`` letters, broken at spaces and hyphens only."""
    lines = []
    for whole in text.split("\n"):
        line = ""
        for word in WORD.findall(whole):
            if line and len(line + word) > letters:
                lines.append(line)
                line = word.lstrip()
            else:
                line += word
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


def _escape_latex(text: str) -> str:
    """Return a text that LaTeX prints as it is, on one line."""
    # a mark stands for it until the end: the letters of its command would be escaped, too
    for letters in (name for name in ESCAPED if len(name) > 1):
        text = text.replace(letters, "\0")
    written = "".join(ESCAPED.get(letter, letter) for letter in " ".join(text.split()))
    return MINUS.sub("$-$", written).replace("\0", ESCAPED["\u2098\u2090\u2093"])


def latex_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    note: str = "",
    bold: Collection[tuple[int, int]] = (),
) -> str:
    """Return a ``tabular`` of texts: numbers to the right, other texts to the left, long ones in
    lines of a fixed width.

    Args:
        columns: The header.
        rows: The cells.
        note: A comment above the table, such as its title.
        bold: Places of the cells in bold, [row, column].
    """
    kinds = [_kind([row[place] for row in rows]) for place in range(len(columns))]
    lines = [f"% {line}" for line in note.splitlines()]
    lines += [rf"\begin{{tabular}}{{{''.join(kinds)}}}", r"\toprule"]
    lines += [" & ".join(map(_escape_latex, columns)) + r" \\", r"\midrule"]
    for place, row in enumerate(rows):
        texts = list(map(_escape_latex, row))
        cells = [
            rf"\textbf{{{text}}}" if (place, column) in bold else text
            for column, text in enumerate(texts)
        ]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _kind(cells: Sequence[str]) -> str:
    """Return the column type of LaTeX for the cells of a column."""
    if any(len(text) > MOST_LETTERS for text in cells):
        return PARAGRAPH
    return "r" if cells and all(map(_number, cells)) else "l"


def _number(text: str) -> bool:
    try:
        float(text.replace(",", "").replace("\N{PLUS-MINUS SIGN}", "").replace(" ", "") or "x")
    except ValueError:
        return text == "-"
    return True
