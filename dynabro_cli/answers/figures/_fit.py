"""Make a picture fit its width: long words break, crowded ones turn, and the picture grows until
its panels have most of its height.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.table import Table
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator

from dynabro_cli.answers.figures._tables import in_lines

PANELS = 0.6
"""Least share of the height that panels have."""
TALLEST = 9.0
"""Height of a page of a paper without its margins, in inches."""
MOST_NAMES = 0.5
"""Largest share of the width for the names at the left of one panel."""
PAD = 0.025
"""Inches above and below a panel with its words."""
HIGH = 12.0
"""Height in inches that is added to a picture to measure its words."""
STEP = 2.0
"""Points by which a note at the data moves until it is free of others."""
CUT, NEAR_ZERO = "cut", 0.25
"""Label of panels whose vertical axis is marked, and the largest share of its end at which it
begins near 0.
"""
LEAST, UPRIGHT = 8, 14
"""Letters of a line, and of an upright word, that are not broken."""
APART, SLACK = 2.0, 1.0
"""Pixels between words side by side, and by which boxes of words may overlap."""


def fit(figure: Figure, tallest: float = math.inf) -> None:
    """Break, turn and space the words of a picture with its final width, and make it as tall as
    they need, and not taller than ``tallest`` inches if they do not.
    """
    FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(h_pad=PAD, hspace=0)
    wanted = min(figure.get_figheight(), tallest)
    figure.set_figheight(wanted + HIGH)  # room for all words, so that they can be measured
    _drop_repeated(figure)
    with warnings.catch_warnings():  # words that are not broken yet may leave no room for a panel
        warnings.filterwarnings("ignore", "constrained_layout not applied")
        for _ in range(4):  # what is broken or turned changes the size of the panels
            figure.draw_without_rendering()
            for text in (*figure.texts, *_of_legends(figure)):
                _break(text, (0.98 if text in figure.texts else 0.8) * figure.bbox.width)
            needed = max(map(_arrange, _panels(figure)), default=0.0)
            figure.draw_without_rendering()
            height = figure.get_figheight()
            panels, rest = _share(figure) * height, (1 - _share(figure, original=True)) * height
            if panels + rest < 0.99 * height:  # panels of a fixed shape do not grow
                figure.set_figheight(min(wanted, rest + panels))
            else:
                figure.set_figheight(
                    max(wanted, rest / (1 - PANELS) * 1.01, rest + panels * needed)
                )


def problem(figure: Figure) -> str | None:
    """Return why a picture that was fitted cannot be printed; None if it can."""
    figure.draw_without_rendering()
    if figure.get_figheight() > TALLEST:
        return f"it needs {figure.get_figheight():.1f} inches of height, and a page has {TALLEST:g}"
    if _share(figure) < PANELS:
        return "words take the place of its panels"
    texts = list(words(figure))
    boxes = np.array([text.get_window_extent().extents for text in texts]).reshape(-1, 4)
    low, high = boxes[:, :2], boxes[:, 2:]
    if (low < -SLACK).any() or (high > np.array(figure.bbox.max) + SLACK).any():
        return "its words are too long"
    shared = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)  # [words, words, 2]
    both = np.argwhere(np.triu((shared > SLACK).all(2), 1))
    if len(both):
        first, second = (" ".join(texts[place].get_text().split()) for place in both[0])
        return f"'{first}' and '{second}' overlap"
    return None


def words(figure: Figure) -> Iterator[Text]:
    """Yield the visible words of a picture, without notes at its data."""
    texts = [*figure.texts, *_of_legends(figure)]
    for axes in _panels(figure):
        texts += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *_cells(axes)]  # type: ignore[attr-defined]
        texts += [*_ticks(axes.xaxis), *_ticks(axes.yaxis)]
        texts += [axes.xaxis.get_offset_text(), axes.yaxis.get_offset_text()]
    for table in figure.findobj(Table):
        texts += [cell.get_text() for cell in table.get_celld().values()]
    return (text for text in texts if text.get_visible() and text.get_text().strip())


def _panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.axison]


def _of_legends(figure: Figure) -> list[Text]:
    legends = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
    return [text for legend in legends for text in (legend.get_title(), *legend.get_texts())]


def _cells(axes: Axes) -> list[Text]:
    """Return the texts of a matrix of colours."""
    coloured = any(isinstance(part, QuadMesh) for part in axes.collections)
    return list(axes.texts) if coloured and axes.get_label() != "<colorbar>" else []


def _ticks(axis: Axis) -> list[Text]:
    """Return the words at the ticks of an axis that are seen."""
    low, high = sorted(axis.get_view_interval())
    room = 1e-9 * (high - low)
    seen = [
        label
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if low - room <= tick.get_loc() <= high + room
        for label in (tick.label1, tick.label2)
    ]
    return [label for label in seen if label.get_visible() and label.get_text().strip()]


def _share(figure: Figure, *, original: bool = False) -> float:
    """Return the share of the height that rows of panels, or their places, have."""
    ends = sorted(tuple(axes.get_position(original).intervaly) for axes in figure.axes)
    total, top = 0.0, 0.0
    for low, high in ends:
        total += max(0.0, high - max(low, top))
        top = max(top, high)
    return total


def _drop_repeated(figure: Figure) -> None:
    """Hide the name of an axis that the next panel below, or at the left, has as well."""
    panels = {
        (place.colspan.start, place.rowspan.start): axes
        for axes in _panels(figure)
        if (place := axes.get_subplotspec()) is not None
    }
    for (column, row), axes in panels.items():
        below, beside = panels.get((column, row + 1)), panels.get((column - 1, row))
        if below and below.get_xlabel() == axes.get_xlabel():
            axes.xaxis.label.set_visible(False)
            if _scale(below) == _scale(axes):
                axes.xaxis.set_tick_params(labelbottom=False)
        if beside and beside.get_ylabel() == axes.get_ylabel():
            axes.yaxis.label.set_visible(False)


def _scale(axes: Axes) -> tuple[list[float], list[str]]:
    """Return the limits and the ticks of an axis along x."""
    return [*axes.get_xlim()], [text.get_text() for text in _ticks(axes.xaxis)]


def _arrange(axes: Axes) -> float:
    """Break and turn the words of a panel; return how many times as high it has to be."""
    for text in (axes.title, axes._left_title, axes.xaxis.label):  # type: ignore[attr-defined]
        _break(text, axes.bbox.width)
    _break(axes.yaxis.label, axes.bbox.height)
    place = axes.get_subplotspec()
    if place is not None:
        room = MOST_NAMES * axes.figure.bbox.width / place.get_gridspec().ncols
        names = _ticks(axes.yaxis)
        if max((text.get_window_extent().width for text in names), default=0) > room:
            _relabel(axes.yaxis, int(room / _letter(names)))
    _show_cut(axes)
    notes = [text for text in axes.texts if isinstance(text, Annotation)]
    for number, note in enumerate(notes):
        others = [other.get_window_extent() for other in notes[:number]]
        while any(note.get_window_extent().overlaps(other) for other in others):
            across, up = note.xyann
            note.xyann = across, up + math.copysign(STEP, up)
    below, cells = _ticks(axes.xaxis), _cells(axes)
    if below and below[0].get_rotation() == 90:
        _break_upright(axes.xaxis, below)
    elif _crowding(below, 0) > 1:
        _turn(axes.xaxis, below)
    if _crowding(cells, 0) > 1:
        for text in cells:
            text.set(rotation=90, text=text.get_text().replace("-\n", "-"))
    names = _ticks(axes.yaxis) if _has_words(axes.yaxis) else []
    return max(_crowding(names, 1), _crowding(cells, 1))


def _show_cut(axes: Axes) -> None:
    """Begin a vertical axis at 0 that begins near 0, and mark it if it begins above."""
    low, high = axes.get_ylim()
    marked = axes.get_label() in ("<colorbar>", CUT)
    if marked or axes.get_yscale() != "linear" or not 0 < low < high:
        return
    if low < NEAR_ZERO * high:
        axes.set_ylim(bottom=0)
        return
    axes.set_label(CUT)
    axes.plot(
        [0, 0],
        [0.03, 0.06],
        color="black",
        marker=[(-1, -0.5), (1, 0.5)],
        linestyle="none",
        transform=axes.transAxes,
        clip_on=False,
    )


def _crowding(texts: Sequence[Text], along: int) -> float:
    """Return the largest ratio of the room that two neighbours need, in x (0) or y (1), to the room
    between their middles.
    """
    lines: dict[float, list[tuple[float, float]]] = {}
    for text in texts:
        low, high = text.get_window_extent().get_points()[:, along]
        lines.setdefault(text.get_position()[1 - along], []).append(((low + high) / 2, high - low))
    return max(
        (
            ((first[1] + second[1]) / 2 + APART) / (second[0] - first[0])
            for line in lines.values()
            for first, second in itertools.pairwise(sorted(line))
            if second[0] > first[0]
        ),
        default=0.0,
    )


def _turn(axis: Axis, labels: Sequence[Text]) -> None:
    """Break words below or above a panel at the width of their places, or turn them upright."""
    letters = int(_place(labels) / _letter(labels))
    lines = [line for text in labels for line in in_lines(text.get_text(), letters).split("\n")]
    if max(map(len, lines)) > letters:
        axis.set_tick_params(rotation=90)
    else:
        _relabel(axis, letters)


def _break_upright(axis: Axis, labels: Sequence[Text]) -> None:
    """Break upright words into as many lines as their places are wide."""
    words = [text.get_text() for text in labels]
    high = 1.25 * min(text.get_window_extent().width for text in labels)
    longest = max(len(line) for text in words for line in text.split("\n"))
    if longest > UPRIGHT and _has_words(axis):
        most = int(_place(labels) / high)
        for letters in range(UPRIGHT, longest):
            if all(in_lines(text, letters, cut=True).count("\n") < most for text in words):
                _relabel(axis, letters)
                break


def _place(labels: Sequence[Text]) -> float:
    """Return the least distance of two words along x."""
    middles = sorted(text.get_window_extent().get_points()[:, 0].mean() for text in labels)
    return float(min(np.diff(middles), default=0)) - APART


def _has_words(axis: Axis) -> bool:
    return isinstance(axis.get_major_locator(), FixedLocator)


def _letter(labels: Sequence[Text]) -> float:
    """Return the width of a letter in pixels."""
    return max(
        text.get_window_extent().width / max(map(len, text.get_text().split("\n")))
        for text in labels
    )


def _relabel(axis: Axis, letters: int) -> None:
    """Break the words at an axis, if it has words."""
    if _has_words(axis):
        broken = [in_lines(text.get_text(), letters, cut=True) for text in axis.get_ticklabels()]
        axis.set_ticks(axis.get_majorticklocs(), broken)


def _break(text: Text, room: float) -> None:
    """Break a text that is longer than ``room`` pixels."""
    along = 1 if text.get_rotation() == 90 else 0
    whole = text.get_text()
    longest = max(map(len, whole.split("\n")))
    while text.get_window_extent().size[along] > room and longest > LEAST:
        longest -= 1
        text.set_text(in_lines(whole, longest, cut=True))
