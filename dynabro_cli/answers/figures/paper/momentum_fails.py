"""The figures ``momentum-fails-gap`` and ``momentum-fails-paths``: static attacks above dynamic
ones, one column per beta.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynabro_cli.answers.analysis.cells import RUNS, curves
from dynabro_cli.answers.analysis.columns import BETA, RULES
from dynabro_cli.answers.analysis.diverged import DIVERGED
from dynabro_cli.answers.analysis.results import Results, rows_with
from dynabro_cli.answers.figures._api import Drawn, figure
from dynabro_cli.answers.figures._panels import (
    APART,
    blank,
    draw_curves,
    legend,
    mark_diverged,
    write_title,
)
from dynabro_cli.answers.figures._style import STRENGTHS, Line, narrow

BY = ("switching", "aggregator", "method", "attack")
LAMBDA = "\N{GREEK SMALL LETTER LAMDA}"
MARGIN = 0.3


@figure("momentum-fails-gap", sweep="momentum-fails-gap", reference="DynaBRO (ICML 2024), Figure 3")
def gap(results: Results) -> Drawn:
    """f(x_t) - f* on the 2D quadratic under static and dynamic attacks of several strengths, by
    momentum and rule.
    """
    numbers = curves(results, BY, "gap")
    labels, lines = strengths(results)
    picture, grid = panels(results, 7.6)
    scattered = False
    for axes, values in grid:
        shown = rows_with(numbers, **values)
        attacks = set(shown["attack"])
        looks = {name: line for name, line in lines.items() if name in attacks}
        scattered |= draw_curves(axes, shown, looks, "gap", x="budget", series="attack")
        axes.set_yscale("log", nonpositive="clip")
        axes.set(xlabel="round t", ylabel="f(x) - f*")
        axes.label_outer()
    legend(picture, *explained(labels, lines))
    write_title(
        picture,
        results,
        numbers,
        "95% confidence interval",
        "quadratic, m = 3, one Byzantine worker",
        APART if scattered else "",
    )
    return Drawn(picture, numbers.drop(columns=RUNS))


@figure(
    "momentum-fails-paths",
    sweep="momentum-fails-gap",
    reference="DynaBRO (ICML 2024), Figure 4",
    seed=(0,),
)
def paths(results: Results) -> Drawn:
    """Paths of x_t on the contours of the 2D quadratic, one per strength, under static and dynamic
    attacks.
    """
    numbers = _points(results)
    labels, lines = strengths(results)
    picture, grid = panels(results, 9.2)
    # the path of a run that diverges leaves the panel
    inside = numbers.loc[~numbers["diverged"] | (numbers["budget"] == 0), ["x1", "x2"]]
    low, high = inside.min() - MARGIN, inside.max() + MARGIN
    for axes, values in grid:
        paths = dict(tuple(rows_with(numbers, **values).groupby("attack")))
        _contours(axes, low, high, results.planned.iloc[0]["spec"]["task"]["condition"])
        for place, attack in enumerate(attack for attack in lines if attack in paths):
            line, path = lines[attack], paths[attack]
            axes.plot(path["x1"], path["x2"], color=line.color, linestyle=line.dash, linewidth=0.9)
            axes.plot(
                path["x1"].tail(1),
                path["x2"].tail(1),
                line.marker,
                zorder=5,
                # ends that coincide stay visible, one within the other
                markersize=8.0 - 1.2 * place,
                markerfacecolor="none",
                markeredgecolor=line.color,
            )
            end = path.dropna().tail(1)[["x1", "x2"]].clip(low, high, axis=1)
            lost = end.assign(mean=end["x2"], diverged=path["diverged"].any())
            mark_diverged(axes, end["x1"], lost, line.color)
        axes.plot(0, 0, "*", color="black", markersize=6, zorder=4)
        axes.grid(visible=False)
        axes.set(xlabel="x\N{SUBSCRIPT ONE}", ylabel="x\N{SUBSCRIPT TWO}")
        axes.set(xlim=(low["x1"], high["x1"]), ylim=(low["x2"], high["x2"]))
        axes.set_aspect("equal")
        axes.label_outer()
    legend(picture, *explained(labels, lines))
    write_title(
        picture,
        results,
        numbers,
        title="quadratic; the star is x*, markers are the ends",
    )
    return Drawn(picture, numbers.drop(columns=["n", "diverged"]))


def _points(results: Results) -> pd.DataFrame:
    """Return x_t at the evaluations of the first seed of each cell: one row per point, with its
    cell.
    """
    runs = results.runs.drop_duplicates(list(BY))
    rows = results.evaluations.merge(
        runs[["id", "seed", "status", *BY]], left_on="run_id", right_on="id"
    )
    texts = rows["x"].map(lambda text: json.loads(text) if text else [np.nan, np.nan])
    points = texts.str[:2].tolist()
    rows[["x1", "x2"]] = pd.DataFrame(points, dtype=float).replace([np.inf, -np.inf], np.nan)
    rows = rows.assign(n=1, diverged=rows["status"] == DIVERGED)
    return rows[[*BY, "seed", "budget", "x1", "x2", "n", "diverged"]]


def _contours(axes: Axes, low: pd.Series[Any], high: pd.Series[Any], condition: float) -> None:
    """Draw contours of f(x) = 1/2 x^T A x, where A has the eigenvalue ``condition`` along (1, 1),
    and 1 across.
    """
    x1, x2 = np.meshgrid(
        np.linspace(low["x1"], high["x1"], 80), np.linspace(low["x2"], high["x2"], 80)
    )
    f = 0.25 * (condition * (x1 + x2) ** 2 + (x1 - x2) ** 2)
    axes.contour(
        x1, x2, f, levels=np.geomspace(0.1, max(1.0, f.max()), 10), colors="#bbbbbb", linewidths=0.4
    )


def panels(results: Results, height: float) -> tuple[Figure, list[tuple[Axes, dict[str, str]]]]:
    """Return a picture with one row per kind of attack and rule, and one column per beta; and its
    panels, each with the values of ``switching``, ``aggregator`` and ``method`` of its runs.
    """
    planned = results.planned
    rows = planned[["switching", "aggregator"]].drop_duplicates().to_dict("records")
    rows.sort(key=lambda row: row["switching"] != "static")
    first = planned.drop_duplicates("method")
    height = 0.65 * height if narrow() else height
    figure, axes = blank(len(rows), len(first), height=height, sharex=True, sharey=True)
    panels = []
    for place, row in enumerate(rows):
        kind = "static" if row["switching"] == "static" else "dynamic"
        words = f"{kind} attack, {RULES.get(row['aggregator'], row['aggregator'])}"
        for column, (method, spec) in enumerate(zip(first["method"], first["spec"], strict=True)):
            # the row's words are above its middle panel, beta above the first row
            title = words if column == len(first) // 2 else ""
            beta = f"\n{BETA} = {spec['method']['beta']:g}"
            axes[place, column].set_title(title + (beta if place == 0 else ""))
            panels.append((axes[place, column], {**row, "method": method}))
    return figure, panels


def strengths(results: Results) -> tuple[dict[str, str], dict[str, Line]]:
    """Return label and look of each strength of the attack, by the text of the attack."""
    first = results.planned.drop_duplicates("attack")
    values = {
        attack: float(spec["attack"]["lambda"])
        for attack, spec in zip(first["attack"], first["spec"], strict=True)
    }
    distinct = sorted(set(values.values()))
    labels = {attack: f"{LAMBDA} = {value:g}" for attack, value in values.items()}
    lines = {
        attack: STRENGTHS[distinct.index(value) % len(STRENGTHS)]
        for attack, value in values.items()
    }
    return labels, lines


def explained(
    labels: dict[str, str], lines: dict[str, Line]
) -> tuple[dict[str, str], dict[str, Line]]:
    """Return labels and looks for a legend, each strength once."""
    once = {label: attack for attack, label in reversed(labels.items())}
    ordered = {attack: label for label, attack in reversed(once.items())}
    return ordered, {attack: lines[attack] for attack in ordered}
