"""Panels of several figures, and the notes around them: seeds, and missing runs."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dynabro_cli.analysis.columns import (
    RULE,
    RULES,
    TASKS,
    learning_rates_note,
    method_label,
    method_names,
    short,
    switching_rate,
)
from dynabro_cli.analysis.results import Results, missing
from dynabro_cli.components import format_value
from dynabro_cli.errors import many
from dynabro_cli.experiment.effect import ENTRY
from dynabro_cli.experiment.label import CELL
from dynabro_cli.experiment.spec import fields
from dynabro_cli.figures._style import COLUMN, NOTE_SIZE, PAGE, Line, narrow, note_size, width_of
from dynabro_cli.figures._tables import CHARACTER

ACCURACY = "test accuracy"
SAMPLES = "samples of all workers"
SHARES = (0.0, 1.0)
"""Limits of numbers that are accuracies, which a matrix has without the zero before the point."""
LETTER = 0.058
"""Width of a letter of a legend, in inches."""
LONG = 9
"""Words at an axis are upright if one of them has more letters."""
FEW = 5
"""Fewest seeds for which a standard deviation is drawn, and not the points of the runs."""

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
    columns = min(count, 1 if narrow() else across)
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


def switching_labels(results: Results) -> dict[str, str]:
    """Return the label of each planned switching strategy, K or infinity, in the plan's order."""
    first = results.planned.drop_duplicates("switching")
    return {
        switching: switching_rate(spec["switching"])
        for switching, spec in zip(first["switching"], first["spec"], strict=True)
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
    line: bool | None = None,
) -> None:
    """Draw the mean of each series at each place, a little apart, so that none hides another, and
    its spread.

    The spread is a bar from ``low`` to ``high``, or the points themselves if there are fewer than
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
        line: Join the means of a series, as along numbers, or keep them apart, as for words; then
            bars are drawn for any number of seeds. None: lines, as in the paper.
    """
    shift = min(
        0.08 if line is not False else 0.2,
        (0.5 if line is not False else 0.7) / max(1, len(looks)),
    )
    order = list(places)
    for number, (name, look) in enumerate(looks.items()):
        points = numbers[numbers[series] == name].set_index(x).reindex(order)
        at = np.arange(len(order)) + shift * (number - (len(looks) - 1) / 2)
        many = (points["n"] >= (FEW if line is None else 2)) & points["mean"].notna()
        ends = [
            (points["mean"] - points["low"]).where(many, 0).fillna(0),
            (points["high"] - points["mean"]).where(many, 0).fillna(0),
        ]
        dash = "none" if line is False else look.dash
        axes.errorbar(
            at,
            points["mean"],
            ends,
            color=look.color,
            marker=look.marker,
            linestyle=dash,
            elinewidth=0.8,
        )
        few = [
            place
            for place in order
            if not many[place] or (line is not None and points["n"][place] < FEW)
        ]
        shown = runs[(runs[series] == name) & runs[x].isin(few)]
        axes.plot(
            [at[order.index(place)] for place in shown[x]],
            shown[value],
            ".",
            color=look.color,
            markersize=2.5,
            alpha=0.7,
            zorder=4,
        )
        mark_diverged(axes, at, points["mean"], points["diverged"])
    upright = max(map(len, places.values())) > LONG
    axes.set_xticks(range(len(order)), list(places.values()), rotation=90 if upright else 0)
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.grid(axis="x", visible=False)


def draw_curves(
    axes: Axes,
    numbers: pd.DataFrame,
    looks: dict[str, Line],
    *,
    x: str = "samples",
    series: str = "series",
) -> None:
    """Draw the curve of each series, with a band around it if there are several seeds.

    Args:
        axes: The panel.
        numbers: The points, as of ``curves`` or ``with_std``.
        looks: The look of each series.
        x: Column along the axis.
        series: Column with the series.
    """
    for number, (name, line) in enumerate(looks.items()):
        curve = numbers[numbers[series] == name]
        if curve.empty:
            continue
        step = max(1, len(curve) // 6)
        # so that the markers of coinciding curves do not coincide
        first = (number * step) // max(1, len(looks))
        look = {"color": line.color, "linestyle": line.dash, "marker": line.marker}
        axes.plot(curve[x], curve["mean"], **look, markersize=3, markevery=(first, step))
        axes.fill_between(
            curve[x], curve["low"], curve["high"], color=line.color, alpha=0.15, linewidth=0
        )
        # the loss of a run that diverged is not finite
        last = curve[np.isfinite(curve["mean"])].tail(1)
        mark_diverged(axes, last[x], last["mean"], last["diverged"])


def mark_diverged(axes: Axes, x: Any, y: Any, diverged: Any) -> None:
    """Put a cross over the points with a diverged run."""
    at = np.asarray(pd.Series(diverged).fillna(0) > 0)
    axes.plot(
        np.asarray(x)[at],
        np.asarray(y)[at],
        "x",
        color="red",
        markersize=7,
        markeredgewidth=1.2,
        zorder=5,
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
    place: Figure | Axes,
    labels: dict[str, str],
    series: dict[str, Line],
    title: str = "",
    planned: pd.DataFrame | None = None,
) -> None:
    """Explain the series below the panels of a picture, or within a panel that is left empty for
    it.

    The learning rates of planned runs are in brackets if methods differ in them.
    """
    if planned is not None:
        labels, title = with_learning_rates(labels, planned)
    lines = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle=look.dash)
        for look in series.values()
    ]
    names = [labels[name] for name in series]
    look = {"title": title, "title_fontsize": note_size(7.0)} if title else {}
    if isinstance(place, Axes):
        place.legend(lines, names, loc="center", **look)
    else:
        room = place.get_figwidth() / (0.55 + LETTER * note_size(7.0) / 7.0 * max(map(len, names)))
        place.legend(
            lines, names, loc="outside lower center", ncols=min(max(1, int(room)), 6), **look
        )


def with_learning_rates(
    labels: dict[str, str], planned: pd.DataFrame
) -> tuple[dict[str, str], str]:
    """Return the labels of methods with learning rates that most methods do not have, and a line
    about the others.
    """
    rates = planned.groupby("method", sort=False)["learning_rate"].agg(
        lambda rates: " or ".join(f"{rate:g}" for rate in sorted({*rates}))
    )
    usual = rates.mode()[0]
    if (rates == usual).all():
        return labels, ""
    with_rates = {
        name: f"{label} ({rates[name]})" if rates[name] != usual else label
        for name, label in labels.items()
    }
    return with_rates, f"learning rate {usual}, or in brackets"


def write_plan_title(
    figure: Figure, results: Results, title: str, numbers: pd.DataFrame, spread: str
) -> None:
    """Write a title above the panels, with the number of seeds and the missing runs of the plan.

    Args:
        figure: The picture.
        results: Its runs.
        title: The common part of the runs.
        numbers: The points, with ``n``, the number of seeds, and ``diverged``.
        spread: The meaning of bars and bands.
    """
    lines = [title, ", ".join(filter(None, (results.label, _seeds(numbers, spread))))]
    empty, runs = missing(results)
    if runs:
        cells = f", {len(empty)} cells have no run" if len(empty) else ""
        lines[1] += (
            f"; {len(results.planned) - runs} of the {len(results.planned)} planned runs{cells}"
        )
    write_above(figure, lines)


def plan_words(results: Results) -> str:
    """Describe in a short line what all planned runs have in common: task, network, attack, rule,
    and momentum's memory.
    """
    row = results.planned.iloc[0]
    task, attack, rule = (
        TASKS.get(row["task"], row["task"]),
        row["spec"]["attack"]["name"],
        row["spec"]["aggregator"]["name"],
    )
    sides = f"{attack.upper()} against {RULES.get(rule, rule)}"
    model = row["spec"]["model"]
    network = " (softmax layer)" if model.get("softmax") else ""
    network += f" ({model['width']:g} of the channels)" if model.get("width", 1) != 1 else ""
    return f"{short(task, 40)}{network}, {sides}{memory_words(results)}"


def memory_words(results: Results) -> str:
    """Return the end of a title that says that momentum continues from attacked messages; empty if
    it does not.
    """
    return (
        ", momentum from the message" if (results.planned["attack_entry"] == "state").any() else ""
    )


def write_runs_title(
    figure: Figure, runs: pd.DataFrame, numbers: pd.DataFrame | None, spread: str, what: str = ""
) -> None:
    """Write above the panels of any runs what the runs have in common, and the number of seeds per
    point.

    Args:
        figure: The picture.
        runs: The plotted runs.
        numbers: The points, with ``n`` and ``diverged``; None if they have none.
        spread: The meaning of bars and bands; empty if there are none.
        what: The quantity, if no axis names it.
    """
    words = [short(TASKS.get(word, word)) for word in _shared(runs)]
    lines = [", ".join(words), what]
    if numbers is not None:
        lines[1] = ", ".join(filter(None, (what, _seeds(numbers, spread, bars=spread != "std"))))
        lines.append(learning_rates_note(runs, method_names(runs)))
    write_above(figure, [line for line in lines if line])


def _shared(runs: pd.DataFrame) -> list[str]:
    """Return what all runs have in common: what a title has anyway, and what differs from a
    default that all tasks have.
    """
    columns = [*fields(), RULE]
    first, same = runs.iloc[0], {name for name in columns if runs[name].nunique() == 1}
    words = [
        first[name] if isinstance(first[name], str) else NUMBERS[name].format(first[name])
        for name in ("task", "method", RULE, "attack", "switching", *NUMBERS)
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


def write_above(figure: Figure, lines: Sequence[str]) -> None:
    """Write lines above the panels, broken where the picture ends."""
    size = note_size(NOTE_SIZE + 0.5)
    letters = int(figure.get_figwidth() / (CHARACTER * size))
    texts = [
        part for line in lines for part in textwrap.wrap(line, letters, break_long_words=False)
    ]
    figure.suptitle("\n".join(filter(None, texts)), fontsize=size, color="#333333")


def _seeds(numbers: pd.DataFrame, spread: str, *, bars: bool = False) -> str:
    few, most = int(numbers["n"].min()), int(numbers["n"].max())
    seeds = many(most, "seed") if few == most else f"{few} to {most} seeds a point"
    as_points = spread and "budget" not in numbers
    words = f"mean and {spread}, {seeds}" if most > 1 and spread else seeds
    if as_points and 1 < most < FEW:
        words = (
            f"mean, {spread} and runs as points, {seeds}"
            if bars
            else f"mean and runs as points, {seeds}"
        )
    return words + ("; red x: diverged" if numbers["diverged"].sum() else "")


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
