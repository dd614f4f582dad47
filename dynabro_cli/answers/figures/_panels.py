"""Panels of several figures, and the notes around them: seeds, and missing runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from dynabro_cli.answers.analysis.cells import ACCURACIES, RUNS
from dynabro_cli.answers.analysis.columns import (
    COLUMNS,
    RULE,
    TASKS,
    differences_note,
    method_label,
    short,
)
from dynabro_cli.answers.analysis.results import Results
from dynabro_cli.answers.figures._style import (
    COLUMN,
    NOTE_SIZE,
    PAGE,
    Line,
    narrow,
    note_size,
    width_of,
)
from dynabro_cli.core.errors import many
from dynabro_cli.core.registration import format_value
from dynabro_cli.experiment.effect import ENTRY
from dynabro_cli.experiment.label import CELL
from dynabro_cli.experiment.spec import fields

ACCURACY = "test accuracy"
SAMPLES = "samples of all workers"
NEAR = 0.1
"""Share of the range of a panel's runs, or of all accuracies, within which a run is near a mean."""
SCATTERED = "hollow: single runs, as none is near their mean"
APART = "thin: single runs, where none is near their mean"
SHARES = (0.0, 1.0)
"""Limits of numbers that are accuracies, which a matrix has without the zero before the point."""
MOST_TICKS = 16
"""Most words at an axis; of more places every second or third has one."""
AS_BARS = 2
"""Most places along an axis at which means are bars: a line between two places shows no course."""
FEW = 5
"""Fewest seeds for which the points of the runs are not drawn."""

NUMBERS = {
    "workers": "m = {}",
    "byzantine": "f = {}",
    "budget": "budget {:,}",
    "learning_rate": "rate {:g}",
}
"""Words for numbers in titles, whose defaults are the task's."""


def blank(
    rows: int, columns: int, *, width: float = PAGE, height: float, **shared: Any
) -> tuple[Figure, np.ndarray[Any, Any]]:
    """Return an empty picture with a grid of panels, [rows, columns]."""
    figure = Figure(figsize=(width_of(width), height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def panel_grid(
    count: int,
    *,
    height: float = 2.2,
    across: int = 3,
    rest: float = 0.7,
    **shared: Any,
) -> tuple[Figure, list[Axes]]:
    """Return an empty picture with a number of panels, at most ``across`` in a row, each ``height``
    inches high; ``rest`` is the height of everything else.
    """
    columns = min(count, min(across - 1, 1 if count < 4 else 2) or 1 if narrow() else across)
    rows = -(-count // columns)
    width = PAGE if columns > 1 else 1.45 * COLUMN
    figure, axes = blank(rows, columns, width=width, height=rest + height * rows, **shared)
    panels = list(axes.flat)
    for panel in panels[count:]:
        panel.set_axis_off()
    return figure, panels[:count]


def matrix_of_panels(
    rows: int, columns: int, *, height: float, rest: float, **shared: Any
) -> tuple[Figure, np.ndarray[Any, Any]]:
    """Return an empty picture with panels that have a place, one below the other if it is
    narrow.
    """
    if narrow():
        rows, columns = rows * columns, 1
    return blank(rows, columns, height=rest + height * rows, **shared)


def method_labels(results: Results) -> dict[str, str]:
    """Return the label of each planned method, in the plan's order."""
    first = results.planned.drop_duplicates("method")
    return {
        method: method_label(spec["method"])
        for method, spec in zip(first["method"], first["spec"], strict=True)
    }


def draw_finals(
    axes: Axes,
    numbers: pd.DataFrame,
    runs: pd.DataFrame,
    places: Mapping[Any, str],
    looks: dict[str, Line],
    *,
    x: str = "switching",
    series: str = "series",
    value: str = "final_accuracy",
    line: bool = True,
) -> bool:
    """Draw the mean of each series at each place, a little apart, so that none hides another, and
    its spread.

    The spread is a bar from ``low`` to ``high``, with the runs as points if there are fewer than
    ``FEW`` seeds.

    Args:
        axes: The panel.
        numbers: The points, as of ``final_values``.
        runs: The runs behind them.
        places: The values of ``x`` from left to right, and the words below them.
        looks: The look of each series.
        x: Column along the axis.
        series: Column with the series.
        value: Column of ``runs`` with the number.
        line: Join the means of a series, as along numbers, or keep them apart, as for words; at
            most ``AS_BARS`` places have bars.

    Returns:
        True if a mean is drawn as its runs, because none is near it.
    """
    near, scattered = _near(runs[value], value), False
    order, bars = list(places), len(places) <= AS_BARS
    line = line and not bars
    most, room = (0.3, 0.8) if bars else (0.08, 0.5) if line else (0.2, 0.7)
    shift = min(most, room / max(1, len(looks)))
    for number, (name, look) in enumerate(looks.items()):
        points = numbers[numbers[series] == name].set_index(x).reindex(order)
        points = points.assign(mean=points["mean"].replace(np.inf, np.nan))
        at = np.arange(len(order)) + shift * (number - (len(looks) - 1) / 2)
        own = runs[(runs[series] == name) & runs[x].isin(order)]
        away = (own[value] - points["mean"].reindex(own[x]).to_numpy()).abs().groupby(own[x]).min()
        alone = (away.reindex(order) > near) & (points["n"] > 1)
        least = own.groupby(x)[value].min().reindex(order)
        scattered |= bool(alone.any())
        several = (points["n"] > 1) & points["mean"].notna() & ~alone
        ends = [
            (points["mean"] - points["low"]).where(several, 0).fillna(0),
            (points["high"] - points["mean"]).where(several, 0).fillna(0),
        ]
        means = points["mean"].mask(alone)
        if bars:
            axes.bar(at, means, 0.9 * shift, color=look.color, alpha=0.35)
        axes.errorbar(
            at,
            means,
            ends,
            color=look.color,
            marker=look.marker,
            linestyle=look.dash if line else "none",
            elinewidth=0.8,
        )
        few = [place for place in order if not several[place] or points["n"][place] < FEW]
        shown = own[own[x].isin(few)]
        axes.plot(
            [at[order.index(place)] for place in shown[x]],
            shown[value].replace(np.inf, np.nan),
            ".",
            color=look.color,
            markersize=2.5,
            alpha=0.7,
            zorder=4,
        )
        single = own[own[x].isin([place for place in order if alone[place]])]
        axes.plot(
            [at[order.index(place)] for place in single[x]],
            single[value],
            look.marker,
            color=look.color,
            markerfacecolor="white",
            zorder=4,
        )
        mark_diverged(axes, at, points.assign(mean=points["mean"].mask(alone, least)), look.color)
    step = -(-len(order) // MOST_TICKS)
    words = list(places.values())[::step]
    axes.set_xticks(range(0, len(order), step), words)
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.grid(axis="x", visible=False)
    return scattered


def _near(numbers: Any, value: str) -> float:
    """Return the largest distance of a run from a mean that it is near."""
    low, high = finite_limits(numbers)
    return NEAR * (1 if value in ACCURACIES else high - low)


def cut_at_one(axes: Axes, value: str) -> None:
    """End an axis of accuracies that are all nearly 1 at 1."""
    low, high = axes.get_ylim()
    if value in ACCURACIES and low > 0.9 and high > 1:
        axes.set_ylim(low, 1 + (1 - low) / 50)


def draw_curves(
    axes: Axes,
    numbers: pd.DataFrame,
    looks: dict[str, Line],
    value: str,
    *,
    x: str = "samples",
    series: str = "series",
) -> bool:
    """Draw the curve of each series, with a band around it if there are several seeds.

    Args:
        axes: The panel.
        numbers: The points, as of ``curves`` or ``with_std``.
        looks: The look of each series.
        value: The column of ``evaluations``.
        x: Column along the axis.
        series: Column with the series.

    Returns:
        True if a mean is drawn as its runs somewhere, because none is near it.
    """
    near, scattered = _near(np.concatenate([[], *numbers[RUNS]]), value), False
    for number, (name, line) in enumerate(looks.items()):
        curve = numbers[numbers[series] == name].copy()
        if curve.empty:
            continue
        runs = np.stack(curve.pop(RUNS))  # [points, seeds]
        curve = curve.replace(np.inf, np.nan)
        alone = np.abs(runs - curve[["mean"]].to_numpy(dtype=float)).min(1) > near
        scattered |= bool(alone.any())
        # up to the last such point: pieces of a mean between pieces of runs cannot be read
        alone = np.logical_or.accumulate(alone) & np.logical_or.accumulate(alone[::-1])[::-1]
        beside = np.convolve(alone, [1, 1, 1])[1:-1] > 0  # a line needs two points
        parts = np.where(beside[:, None] & np.isfinite(runs), runs, np.nan)
        axes.plot(curve[x], parts, color=line.color, linestyle=line.dash, linewidth=0.5)
        least = curve["mean"].mask(alone, runs.min(1))
        curve.loc[alone, ["mean", "low", "high"]] = np.nan
        step = max(1, len(curve) // 6)
        # so that the markers of coinciding curves do not coincide
        first = (number * step) // max(1, len(looks))
        look = {"color": line.color, "linestyle": line.dash, "marker": line.marker}
        axes.plot(curve[x], curve["mean"], **look, markersize=3, markevery=(first, step))
        axes.fill_between(
            curve[x], curve["low"], curve["high"], color=line.color, alpha=0.15, linewidth=0
        )
        # the loss of a run that diverged is not finite
        last = curve.assign(mean=least)[least.notna()].tail(1)
        mark_diverged(axes, last[x], last, line.color)
    return scattered


def mark_diverged(axes: Axes, x: Any, points: pd.DataFrame, color: str) -> None:
    """Put a cross over the points with a diverged run, at the top if the mean is infinite, and
    their number if the points have ``n``.
    """
    for at, point in zip(x, points.to_dict("records"), strict=True):
        if not point["diverged"] > 0:  # NaN if a point has no run
            continue
        infinite = not np.isfinite(point["mean"])
        place = axes.get_xaxis_transform() if infinite else axes.transData
        y = 0.97 if infinite else point["mean"]
        axes.plot(
            [at],
            [y],
            "x",
            transform=place,
            clip_on=not infinite,
            color=color,
            markersize=7,
            markeredgewidth=1.2,
            path_effects=[withStroke(linewidth=2.4, foreground="white")],
            zorder=5,
        )
        if "n" not in point:
            continue
        axes.annotate(
            f"{point['diverged']:.0f}/{point['n']:.0f}",
            (at, y),
            (0, -9 if infinite else 5),
            xycoords=place,
            textcoords="offset points",
            ha="center",
            color=color,
            fontsize=note_size(5.0),
        )


def draw_fractions(axes: Axes, bars: pd.DataFrame, workers: int) -> None:
    """Draw the share of rounds with each fraction of Byzantine workers; a line marks the half.

    Args:
        axes: The panel.
        bars: ``fraction`` and ``share``.
        workers: m, which sets the width of a bar.
    """
    axes.bar(
        bars["fraction"],
        bars["share"],
        width=0.9 / workers,
        color="#56B4E9",
        edgecolor="#0072B2",
        linewidth=0.4,
    )
    axes.axvline(0.5, color="#000000", linestyle=(0, (3, 2)), linewidth=0.8)
    axes.grid(axis="x", visible=False)


def millions(axes: Axes) -> str:
    """Write the samples of an axis in millions, or in thousands if there are few; return its
    name.
    """
    unit, word = (1e6, "millions") if axes.get_xlim()[1] >= 1e6 else (1e3, "thousands")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / unit:g}")
    return f"{SAMPLES}, {word}"


def legend(
    figure: Figure,
    labels: dict[str, str],
    series: dict[str, Line],
    title: str = "",
) -> None:
    """Explain the series below the panels of a picture."""
    lines = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle=look.dash)
        for look in series.values()
    ]
    names = [labels[name] for name in series]
    look = {"title": title, "title_fontsize": note_size(7.0)} if title else {}
    for columns in range(min(6, len(names)), 0, -1):
        box = figure.legend(lines, names, loc="outside lower center", ncols=columns, **look)
        if columns == 1 or box.get_window_extent().width < figure.bbox.width:
            break
        box.remove()


def write_title(
    figure: Figure,
    results: Results,
    numbers: pd.DataFrame | None,
    spread: str = "",
    title: str = "",
    what: str = "",
    shown: Sequence[str | None] = (),
) -> None:
    """Write above the panels what the runs have in common, and the number of seeds per point.

    Args:
        figure: The picture.
        results: Its runs.
        numbers: The points, with ``n`` and ``diverged``; None if they have none.
        spread: The meaning of bars and bands; empty if there are none.
        title: Other words in place of what the runs have in common.
        what: The quantity, if no axis names it.
        shown: Columns of the series, axes and panels; without any, of the sweep's own figure, only
            learning rates of methods may differ.
    """
    seeds = "" if numbers is None else _seeds(numbers, spread)
    among = COLUMNS if shown else ["learning_rate"] if seeds else []
    rates = differences_note(results.runs, [*filter(None, shown or ["method"])], among)
    shared = ", ".join(short(TASKS.get(word, word)) for word in _shared(results.runs))
    lines = [title or shared, ", ".join(filter(None, (results.label, what, seeds)))]
    write_above(figure, filter(None, lines if title else [*lines, *rates]))


def _shared(runs: pd.DataFrame) -> list[str]:
    """Return what all runs have in common: what a title has anyway, and what differs from a
    default that all tasks have.
    """
    columns = [*fields(), RULE]
    first, same = runs.iloc[0], {name for name in columns if runs[name].nunique() == 1}
    rules = [RULE] if RULE in same else ["aggregator"]
    words = [
        first[name] if isinstance(first[name], str) else NUMBERS[name].format(first[name])
        for name in ("task", "method", *rules, "attack", "switching", *NUMBERS)
        if name in same
    ]
    usual = {
        name: field.default
        for name, field in fields().items()
        if name not in CELL and field.default is not None
    } | {ENTRY: "gradient"}
    return words + [
        format_value(first[name]) if name == "data" else f"{name} {format_value(first[name])}"
        for name, default in usual.items()
        if name in same and first[name] != default
    ]


def write_above(figure: Figure, lines: Iterable[str]) -> None:
    """Write lines above the panels."""
    size = note_size(NOTE_SIZE + 0.5)
    figure.suptitle("\n".join(filter(None, lines)), fontsize=size, color="#333333")


def _seeds(numbers: pd.DataFrame, spread: str) -> str:
    few, most = int(numbers["n"].min()), int(numbers["n"].max())
    seeds = many(most, "seed") if few == most else f"{few} to {most} seeds a point"
    as_points = spread and "budget" not in numbers
    words = f"mean and {spread}, {seeds}" if most > 1 and spread else seeds
    if as_points and 1 < most < FEW:
        words = f"mean, {spread} and runs as points, {seeds}"
    return words + ("; x: runs diverged, of all" if numbers["diverged"].sum() else "")


def finite_limits(means: Any) -> tuple[float, float]:
    """Return the least and the largest finite number; 0 and 1 without one."""
    finite = means[np.isfinite(means)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)


def draw_matrix(
    panel: Axes,
    values: np.ndarray[Any, np.dtype[np.float64]],
    words: Sequence[Sequence[str]],
    limits: tuple[float, float],
    widths: Sequence[float] | None = None,
    *,
    bold: Collection[tuple[int, int]] = (),
    size: float = 5.5,
) -> tuple[list[float], QuadMesh]:
    """Draw numbers in their colours, with a text on each; return the positions of the columns, and
    the coloured cells.

    Args:
        panel: The panel; the rows are at 0, 1, ..., from the top.
        values: [rows, columns]; NaN is left empty.
        words: The texts; NaNs have no text.
        limits: The numbers at the ends of the colours.
        widths: Widths of the columns; 1 by default.
        bold: Places of the numbers in bold, [row, column].
        size: Size of the text in points.
    """
    values = np.clip(values, *limits)  # an infinite loss has the last colour
    edges = np.concatenate([[0.0], np.cumsum(widths or [1.0] * values.shape[1])]) - 0.5
    places = [float(place) for place in (edges[:-1] + edges[1:]) / 2]
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value) or not words[row][column]:
            continue
        dark = limits[1] > limits[0] and (value - limits[0]) / (limits[1] - limits[0]) < 0.55
        panel.text(
            places[column],
            row,
            words[row][column],
            ha="center",
            va="center",
            fontsize=note_size(size),
            color="white" if dark else "black",
            fontweight="bold" if (row, column) in bold else "normal",
        )
    rows = np.arange(values.shape[0] + 1) - 0.5
    mesh = panel.pcolormesh(edges, rows, values, cmap="cividis", vmin=limits[0], vmax=limits[1])
    panel.invert_yaxis()
    panel.grid(visible=False)
    return places, mesh
