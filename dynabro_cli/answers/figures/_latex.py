r"""Tables in LaTeX, with the rules of the package booktabs (``\usepackage{booktabs}``)."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Sequence

import pandas as pd
from matplotlib.font_manager import findfont, get_font

from dynabro_cli.answers.figures._style import PRINT_SIZE, check_width
from dynabro_cli.answers.figures._tables import broken, widths_of
from dynabro_cli.core.errors import SpecError

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
    "\N{GREEK SMALL LETTER MU}": r"$\mu$",
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
TEXT_WIDTHS, POINTS = {"column": 3.25, "page": 6.75}, 72.27
"""Widths of a column and of a page in inches, as of ICML, and TeX's points in an inch."""
GAP = 6
"""Space between two columns in points."""
PRINT = rf"{{\fontsize{{{PRINT_SIZE:g}}}{{9.6}}\selectfont\setlength{{\tabcolsep}}{{{GAP // 2}pt}}"
"""Text of 8 pt."""
CMR8, BOLD = 1.07, 1.16
"""Widths of letters of Computer Modern at 8 pt, and of bold ones, relative to cmr10, which
matplotlib has.
"""
COMPONENT = re.compile(r"(?<![\w:=.-])([a-z][\w-]*):([a-z]\w*=[^\s+();]*[^\s+();,])")
"""A component with parameters: its name, and the rest."""
MARK = re.compile("(?<=\N{PLUS-MINUS SIGN}) | (?=\N{ALMOST EQUAL TO})")
"""Spaces at which a line of a cell must not end."""
NAME = re.compile(r"[\w-]+")


def _escape_latex(text: str) -> str:
    """Return a text that LaTeX prints as it is, on one line."""
    # a mark stands for it until the end: the letters of its command would be escaped, too
    for letters in (name for name in ESCAPED if len(name) > 1):
        text = text.replace(letters, "\0")
    written = "".join(ESCAPED.get(letter, letter) for letter in " ".join(text.split()))
    return MINUS.sub("$-$", written).replace("\0", ESCAPED["\u2098\u2090\u2093"])


def latex_table(
    table: pd.DataFrame,
    note: str = "",
    bold: Collection[tuple[int, int]] = (),
    width: str | None = None,
) -> str:
    """Return a ``tabular`` of texts: numbers to the right, other texts to the left, long ones in
    lines of a fixed width.

    Args:
        table: The cells.
        note: A comment above the table, such as its title.
        bold: Places of the cells in bold, [row, column].
        width: ``column`` or ``page``: text of 8 pt, components without parameters that the table
            does not need to tell them apart, and cells of several lines, so that the table fits;
            None for a line per row.

    Raises:
        SpecError: The table does not fit the width.
    """
    check_width(width)
    texts = [[*map(str, table)], *table.astype(str).values.tolist()]
    kinds = [_kind(cells[1:], width) for cells in zip(*texts, strict=True)]
    start, end = r"\begin{tabular}", r"\end{tabular}"
    if width:
        texts, short = _short(texts)
        note = "\n".join(filter(None, [note, *short]))
        texts = _fitted(texts, bold, width)
        start, end = f"{PRINT}{start}", f"{end}}}"
        kinds = ["@{}", *kinds, "@{}"]
    start = f"{start}{{{''.join(kinds)}}}"
    lines = [*(f"% {line}" for line in note.splitlines()), start, r"\toprule"]
    for place, row in enumerate(texts, -1):
        cells = [cell.split("\n") if width else [cell] for cell in row]
        if place > 0 and any("\n" in cell for cell in itertools.chain(*texts[1:])) and width:
            lines.append(r"\addlinespace")
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            words = [
                rf"\textbf{{{_escape_latex(text)}}}"
                if text and (place, column) in bold
                else _escape_latex(text)
                for column, text in enumerate(parts)
            ]
            lines.append(" & ".join(words) + r" \\")
        if place < 0:
            lines.append(r"\midrule")
    return "\n".join([*lines, r"\bottomrule", end, ""])


def _short(texts: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[str]]:
    """Return the texts without the parameters of components whose name occurs with one set of
    parameters only; and lines that say so.
    """
    whole = "\n".join(itertools.chain(*texts))
    components = dict.fromkeys(COMPONENT.findall(whole))
    names = [name for name, _ in components] + NAME.findall(COMPONENT.sub("", whole))
    short = {f"{name}:{rest}": name for name, rest in components if names.count(name) == 1}
    return [
        [COMPONENT.sub(lambda match: short.get(match[0], match[0]), text) for text in row]
        for row in texts
    ], [f"{name} stands for {text}" for text, name in short.items()]


def _fitted(
    texts: list[list[str]], bold: Collection[tuple[int, int]], width: str
) -> list[list[str]]:
    """Return the texts in as few lines as fit the width; the first row is the head."""
    texts = [[MARK.sub("", text) for text in row] for row in texts]
    texts[0] = [head.replace("_", " ") for head in texts[0]]
    for most in range(sum(widths_of(texts)), 0, -1):
        lines = broken(texts, most)
        needed = GAP * (len(lines[0]) - 1) + sum(
            max(
                _points(line) * (BOLD if (row, column) in bold else 1)
                for row, text in enumerate(cells, -1)
                for line in text.split("\n")
            )
            for column, cells in enumerate(zip(*lines, strict=True))
        )
        if needed <= TEXT_WIDTHS[width] * POINTS:
            return lines
    raise SpecError(
        f"width={width}: the table is wider, {needed / POINTS:.2f} inches for "
        f"{TEXT_WIDTHS[width]}. Try: --columns{'' if width == 'page' else ', or --width page'}"
    )


@functools.cache
def _points(text: str) -> float:
    """Return the width of a text of 8 pt in Computer Modern; symbols have the widest one's."""
    font = get_font(findfont("cmr10"))
    font.set_size(PRINT_SIZE, 72)
    plain = font.get_charmap().keys() - set(map(ord, "".join(ESCAPED)))
    return sum(
        CMR8 * font.load_char(ord(letter)).linearHoriAdvance / 65536
        if ord(letter) in plain
        else PRINT_SIZE
        for letter in MINUS.sub("\N{MINUS SIGN}", text)
    )


def _kind(cells: Sequence[str], width: str | None) -> str:
    """Return the column type of LaTeX for the cells of a column."""
    if not width and any(len(text) > MOST_LETTERS for text in cells):
        return PARAGRAPH
    return "r" if cells and all(map(_number, cells)) else "l"


def _number(text: str) -> bool:
    try:
        float(text.replace(",", "").replace("\N{PLUS-MINUS SIGN}", "").replace(" ", "") or "x")
    except ValueError:
        return text == "-"
    return True
