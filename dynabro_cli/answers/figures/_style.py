"""The look of figures: sizes for print, and a colour, a marker and a dash for each method, also
distinct in grey.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, LogFormatterSciNotation

from dynabro_cli.answers.analysis.columns import BETA
from dynabro_cli.core.errors import SpecError

POWER = re.compile(r"\^\{(-?[0-9.]+)\}")
RAISED = str.maketrans(
    "0123456789-", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b"
)
COLUMN, PAGE = 3.3, 6.8
"""Widths of one column and of a whole page of a two-column paper, in inches."""
WIDTHS = {"column": COLUMN, "page": PAGE}
"""Widths of a picture for print, by the values of ``--width``."""
PRINT_SIZE = 8.0
"""Size of all text of a picture for print, in points."""
NARROW = 4.0
"""Least width, in inches, of a picture with several panels in a row and long labels."""
NOTE_SIZE = 6.0
_print_width: ContextVar[float | None] = ContextVar("width", default=None)
"""Set by ``for_print``; None: pictures have their usual widths."""

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "legend.columnspacing": 1.2,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "errorbar.capsize": 1.5,
    "savefig.dpi": 300,
    # TrueType; by default PDFs have fonts of Type 3, which many publishers refuse
    "pdf.fonttype": 42,
    # ids in an SVG are random otherwise, and the same picture differs from file to file
    "svg.hashsalt": "dynabro",
    "text.parse_math": False,  # text of a database is drawn literally
    "text.usetex": False,
}
SIZES: tuple[Any, ...] = (
    *("font.size", "axes.titlesize", "axes.labelsize"),
    *("xtick.labelsize", "ytick.labelsize", "legend.fontsize"),
)


@contextlib.contextmanager
def for_print(width: str | None) -> Iterator[None]:
    """Draw pictures, within the context, with the width ``column`` or ``page`` and text of 8 pt;
    None for their own widths.
    """
    token = _print_width.set(None if width is None else WIDTHS[width])
    try:
        with rc_context():
            rcdefaults()  # a user's matplotlibrc, which may say that pictures are transparent
            rcParams.update(RC)
            if width is not None:
                rcParams.update(dict.fromkeys(SIZES, PRINT_SIZE))
            yield
    finally:
        _print_width.reset(token)


def check_width(width: str | None) -> None:
    """Raise SpecError unless a width is ``column``, ``page`` or None."""
    if width is not None and width not in WIDTHS:
        raise SpecError(
            f"width={width}: not a width for print. Try: --width {' or --width '.join(WIDTHS)}"
        )


def width_of(usual: float) -> float:
    """Return the width for print in inches, or a picture's own."""
    chosen = _print_width.get()
    return usual if chosen is None else chosen


def narrow() -> bool:
    """Return True if pictures have the width of a column: long words do not fit side by side."""
    return width_of(PAGE) < NARROW


def note_size(usual: float = NOTE_SIZE) -> float:
    """Return the size of small text: 8 pt for print."""
    return usual if _print_width.get() is None else PRINT_SIZE


class Powers(LogFormatterSciNotation):
    """Powers of ten on an axis in plain letters: matplotlib's mathematical text is not used."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        text = super().__call__(x, pos).removeprefix(r"$\mathdefault{").removesuffix("}$")
        return POWER.sub(
            lambda match: match[1].translate(RAISED),
            text.replace(r"\times", "\N{MULTIPLICATION SIGN}"),
        )


def plain_powers(figure: Figure) -> None:
    """Label all logarithmic axes of a figure with ``Powers``."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_formatter(), LogFormatter):
            axis.set_major_formatter(Powers())
        if isinstance(axis.get_minor_formatter(), LogFormatter):
            axis.set_minor_formatter(Powers())


class Line(NamedTuple):
    """The look of a series. Colours are from Okabe and Ito and distinct for the colour-blind."""

    color: str
    marker: str
    dash: Any


LINES = (
    Line("#D55E00", "o", "-"),
    Line("#000000", "s", (0, (1, 1.2))),
    Line("#0072B2", "^", (0, (5, 1.5))),
    Line("#56B4E9", "v", (0, (5, 1.5, 1, 1.5))),
    Line("#009E73", "D", (0, (3, 1, 1, 1, 1, 1))),
    Line("#E69F00", "P", (0, (7, 2))),
    Line("#CC79A7", "H", (0, (2, 1.5))),
    Line("#7F7F7F", "<", (0, (4, 1, 1, 1))),
    Line("#882255", "h", (0, (6, 1))),
    Line("#44AA99", "d", (0, (1, 2))),
    Line("#999933", ">", (0, (2, 1, 1, 1))),
    Line("#332288", "p", (0, (8, 1, 1, 1))),
    Line("#AA4499", "*", (0, (3, 2))),
    Line("#117733", "8", (0, (4, 1, 1, 1))),
    Line("#CC6677", "p", (0, (5, 1))),
    Line("#88CCEE", "d", (0, (1, 1))),
)
KNOWN = {
    "DynaBRO": 0,
    "SGD": 1,
    f"momentum {BETA}=0.9": 2,
    f"momentum {BETA}=0.99": 3,
    f"momentum {BETA}=0.9, heavy-ball": 4,
    f"momentum {BETA}=0.99, heavy-ball": 5,
    "ByzantineSGD": 8,
    "SafeguardSGD, double": 9,
    "marina-pp": 10,
    "local-steps": 11,
    "\N{GREEK SMALL LETTER MU}\N{SUPERSCRIPT TWO}-SGD": 6,
    "DeMoA": 7,
    "Byz-NSGDM": 12,
    **dict.fromkeys(("DynaBRO, option1", "option 1"), 13),
    **dict.fromkeys(("DynaBRO, adaptive", "option 2, adaptive"), 14),
    "DynaBRO, clip=4": 15,
}
"""Places of methods in ``LINES``, by their label: they look the same in all figures and in
reports.
"""
STRENGTHS = (
    Line("#000000", "o", "-"),
    Line("#0072B2", "s", (0, (5, 1.2))),
    Line("#009E73", "^", (0, (3, 1, 1, 1))),
    Line("#E69F00", "D", (0, (1, 1))),
    Line("#D55E00", "v", (0, (7, 1.5, 1, 1.5))),
)
"""Looks for the attack's strength lambda, from none to the largest."""


def looks(labels: Mapping[str, str]) -> dict[str, Line]:
    """Return a look for each label: methods have fixed ones, and their colours also if the label
    goes on, as in "SGD, cwtm".

    Others have a look that follows from the label, or the next that is free.
    """
    places = {name: KNOWN[label] for name, label in labels.items() if label in KNOWN}
    methods = {
        name: max((method for method in KNOWN if f"{label},".startswith(f"{method},")), default="")
        for name, label in labels.items()
    }
    for name, label in labels.items():
        if name not in places:
            # hash() of a text is another number in each process
            first = KNOWN.get(methods[name], zlib.crc32(label.encode()))
            near = [(first + step) % len(LINES) for step in range(len(LINES))]
            places[name] = next((place for place in near if place not in places.values()), near[0])
    return {
        name: LINES[places[name]]._replace(color=LINES[KNOWN.get(method, places[name])].color)
        for name, method in methods.items()
    }
