r"""Tables in LaTeX, with the rules of the package booktabs (``\usepackage{booktabs}``)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

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


def escape(text: str) -> str:
    """Return a text that LaTeX prints as it is, on one line."""
    for letters in (name for name in ESCAPED if len(name) > 1):
        text = text.replace(letters, "\0")
    written = "".join(ESCAPED.get(letter, letter) for letter in " ".join(text.split()))
    return MINUS.sub("$-$", written).replace("\0", ESCAPED["\u2098\u2090\u2093"])


def latex_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "", bold: Collection[tuple[int, int]] = ()
) -> str:
    """Return a ``tabular`` of texts: numbers to the right, other texts to the left, long ones in lines of a fixed width.

    Args:
        columns: The header.
        rows: The cells.
        note: A comment above the table, such as its title.
        bold: Places of the cells in bold, [row, column].
    """
    kinds = [_kind([row[place] for row in rows]) for place in range(len(columns))]
    lines = [f"% {line}" for line in note.splitlines()]
    lines += [rf"\begin{{tabular}}{{{''.join(kinds)}}}", r"\toprule"]
    lines += [" & ".join(map(escape, columns)) + r" \\", r"\midrule"]
    for place, row in enumerate(rows):
        cells = [rf"\textbf{{{escape(text)}}}" if (place, column) in bold else escape(text) for column, text in enumerate(row)]
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
