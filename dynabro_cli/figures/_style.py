"""The look of figures: sizes for print, and a colour, a marker and a dash for each method, also distinct in grey."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, LogFormatterSciNotation

POWER = re.compile(r"\^\{(-?[0-9.]+)\}")
RAISED = str.maketrans("0123456789-", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b")
COLUMN, PAGE = 3.35, 6.9
"""Widths of one column and of a whole page of a two-column paper, in inches."""
WIDTHS = {"column": COLUMN, "page": PAGE}
"""Widths of a picture for print, by the values of ``--width``."""
PRINT_SIZE = 8.0
"""Size of all text of a picture for print, in points."""
NARROW = 4.0
"""A picture of fewer inches has one panel in a row, and short labels."""
NOTE_SIZE = 6.0
_chosen: ContextVar[float | None] = ContextVar("width", default=None)

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
    "legend.handlelength": 3.2,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "errorbar.capsize": 1.5,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
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
    """Within the context, draw pictures with the width ``column`` or ``page`` and text of 8 pt; None for their own widths."""
    token = _chosen.set(None if width is None else WIDTHS[width])
    try:
        with rc_context(RC if width is None else {**RC, **dict.fromkeys(SIZES, PRINT_SIZE)}):
            yield
    finally:
        _chosen.reset(token)


def width_of(own: float) -> float:
    """Return the width for print in inches, or a picture's own."""
    chosen = _chosen.get()
    return own if chosen is None else chosen


def narrow() -> bool:
    """Return True if pictures have the width of a column: side by side there is no room for long words."""
    return width_of(PAGE) < NARROW


def note_size(own: float = NOTE_SIZE) -> float:
    """Return the size of small text: 8 pt for print."""
    return own if _chosen.get() is None else PRINT_SIZE


class Powers(LogFormatterSciNotation):
    """Powers of ten on an axis in plain letters: matplotlib's mathematical text is not used."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        text = super().__call__(x, pos).removeprefix(r"$\mathdefault{").removesuffix("}$")
        return POWER.sub(lambda match: match[1].translate(RAISED), text.replace(r"\times", "\N{MULTIPLICATION SIGN}"))


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
    Line("#CC79A7", "X", (0, (2, 1.5))),
    Line("#7F7F7F", "<", (0, (4, 1, 1, 1))),
)
DELTA_MAX = "\N{GREEK SMALL LETTER DELTA}\u2098\u2090\u2093"
BETA = "\N{GREEK SMALL LETTER BETA}"
KNOWN = {
    "DynaBRO": 0,
    "SGD": 1,
    f"momentum {BETA}=0.9": 2,
    f"momentum {BETA}=0.99": 3,
    f"momentum {BETA}=0.9, heavy-ball": 4,
    f"momentum {BETA}=0.99, heavy-ball": 5,
}
"""Places of the paper's methods in ``LINES``, by their label: they look the same in all figures."""
STRENGTHS = (
    Line("#000000", "o", "-"),
    Line("#0072B2", "s", (0, (5, 1.2))),
    Line("#009E73", "^", (0, (3, 1, 1, 1))),
    Line("#E69F00", "D", (0, (1, 1))),
    Line("#D55E00", "v", (0, (7, 1.5, 1, 1.5))),
)
"""Looks for the attack's strength lambda, from none to the largest."""


def looks(labels: Mapping[str, str]) -> dict[str, Line]:
    """Return a look for each label: the paper's methods have fixed ones, others get the remaining ones in turn."""
    taken = {KNOWN[label] for label in labels.values() if label in KNOWN}
    spare = itertools.cycle([line for place, line in enumerate(LINES) if place not in taken] or LINES)
    return {name: LINES[KNOWN[label]] if label in KNOWN else next(spare) for name, label in labels.items()}


def method_label(mapping: Mapping[str, Any]) -> str:
    """Return a method's label for a legend, from its mapping in ``spec``; its name if this version has other parameters."""
    try:
        return _method(mapping)
    except (KeyError, TypeError, ValueError, OverflowError):
        return str(mapping["name"])


def _method(mapping: Mapping[str, Any]) -> str:
    name = mapping["name"]
    if name == "momentum":
        form = "" if mapping["form"] == "ema" else f", {mapping['form']}"
        return f"momentum {BETA}={mapping['beta']:g}{form}"
    if name == "dynabro":
        words = ["DynaBRO"]
        if mapping.get("filter") not in (None, "none", "off"):
            words.append(str(mapping["filter"]))
        if mapping.get("jmax", 7) not in (7, None):
            words.append(f"J\u2098\u2090\u2093={mapping['jmax']}")
        words += [f"{name}={mapping[name]:g}" for name in ("tau", "clip") if mapping.get(name) is not None]
        return ", ".join(words)
    if name == "safeguard":
        return f"SafeguardSGD, {mapping['guards']}"
    return {"sgd": "SGD", "byzantine-sgd": "ByzantineSGD"}.get(name, str(name))


def rate(mapping: Mapping[str, Any]) -> str:
    """Return K of a periodic strategy, and the infinity sign for the static one."""
    return "\N{INFINITY}" if mapping["name"] == "static" else str(mapping.get("K", "?"))


def rate_axis(clocks: Iterable[str]) -> str:
    """Return the name of an axis of switching rates, for runs whose identities change by these clocks."""
    ticks = {"round": "rounds", "computation": "gradient computations"}
    return f"K, {' or '.join(ticks.get(clock, clock) for clock in sorted(set(clocks), reverse=True))} between two switches"


def short(text: str, most: int = 90) -> str:
    """Return ``text``, shortened if it is longer."""
    return text if len(text) <= most else text[: most - 3] + "..."
