"""The figures ``momentum-fails-gap`` and ``momentum-fails-paths``: static attacks above dynamic
ones, one column per beta.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynabro_cli.analysis.cells import curves
from dynabro_cli.analysis.columns import BETA, RULES
from dynabro_cli.analysis.results import Results
from dynabro_cli.figures._api import Drawn, figure
from dynabro_cli.figures._panels import blank, draw_curves, entitle, legend
from dynabro_cli.figures._style import PAGE, STRENGTHS, Line, narrow

BY = ("switching", "aggregator", "method", "attack")
LAMBDA = "\N{GREEK SMALL LETTER LAMDA}"
MARGIN = 0.3


@figure("momentum-fails-gap", sweep="momentum-fails-gap", reference="DynaBRO (ICML 2024), Figure 3")
def gap(results: Results) -> Drawn:
    """f(x_t) - f* on the 2D quadratic under static and dynamic attacks of several strengths, by
    momentum and rule.
    """
    numbers = curves(results, BY, "gap")
    shown = numbers.assign(x=numbers["budget"], series=numbers["attack"])
    labels, lines, _ = strengths(results)
    picture, grid = panels(results, 7.6, sharey=True)
    for panel in grid:
        own = panel.own(shown)
        draw_curves(
            panel.axes,
            own,
            {name: line for name, line in lines.items() if (own["attack"] == name).any()},
        )
        panel.axes.set_yscale("log", nonpositive="clip")
        panel.axes.set(xlabel="round t", ylabel="f(x) - f*")
        panel.axes.label_outer()
    legend(picture, *explained(labels, lines))
    entitle(
        picture,
        results,
        "quadratic, m = 3, one Byzantine worker",
        numbers,
        "95% confidence interval",
    )
    return Drawn(picture, numbers)


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
    labels, lines, _ = strengths(results)
    picture, grid = panels(results, 9.2, sharey=True)
    for panel in grid:
        own = panel.own(numbers)
        _contours(panel.axes, numbers, results.planned.iloc[0]["spec"]["task"]["condition"])
        shown = [attack for attack in lines if (own["attack"] == attack).any()]
        for place, attack in enumerate(shown):
            # ends that coincide stay visible, one within the other
            line, size = lines[attack], 8.0 - 1.2 * place
            path = own[own["attack"] == attack]
            if not path.empty:
                panel.axes.plot(
                    path["x1"], path["x2"], color=line.color, linestyle=line.dash, linewidth=0.9
                )
                look: dict[str, Any] = {
                    "markersize": size,
                    "markerfacecolor": "none",
                    "markeredgecolor": line.color,
                }
                panel.axes.plot(
                    path["x1"].tail(1), path["x2"].tail(1), line.marker, zorder=5, **look
                )
        panel.axes.plot(0, 0, "*", color="black", markersize=6, zorder=4)
        panel.axes.grid(visible=False)
        panel.axes.set(xlabel="x\N{SUBSCRIPT ONE}", ylabel="x\N{SUBSCRIPT TWO}")
        panel.axes.set_aspect("equal")
        panel.axes.label_outer()
    legend(picture, *explained(labels, lines))
    entitle(picture, results, "quadratic; the star is x*, markers are the ends", numbers, "")
    return Drawn(picture, numbers.drop(columns=["n", "diverged"]))


def _points(results: Results) -> pd.DataFrame:
    """Return x_t at the evaluations of the first seed of each cell: one row per point, with its
    cell.
    """
    runs = results.runs.drop_duplicates(list(BY))
    rows = results.evaluations.merge(
        runs[["id", "seed", "status", *BY]], left_on="run_id", right_on="id"
    )
    points = rows["x"].map(lambda text: json.loads(text) if text else [np.nan, np.nan])
    rows = rows.assign(
        x1=points.str[0], x2=points.str[1], n=1, diverged=rows["status"] == "diverged"
    )
    return rows[[*BY, "seed", "budget", "x1", "x2", "n", "diverged"]]


def _contours(axes: Axes, numbers: pd.DataFrame, condition: float) -> None:
    """Draw contours of f(x) = 1/2 x^T A x, where A has the eigenvalue ``condition`` along (1, 1),
    and 1 across.
    """
    low, high = numbers[["x1", "x2"]].min() - MARGIN, numbers[["x1", "x2"]].max() + MARGIN
    x1, x2 = np.meshgrid(
        np.linspace(low["x1"], high["x1"], 80), np.linspace(low["x2"], high["x2"], 80)
    )
    f = 0.25 * (condition * (x1 + x2) ** 2 + (x1 - x2) ** 2)
    axes.contour(
        x1, x2, f, levels=np.geomspace(0.1, max(1.0, f.max()), 10), colors="#bbbbbb", linewidths=0.4
    )


class Panel(NamedTuple):
    """One panel: its place, and the values of the columns ``switching``, ``aggregator`` and
    ``method`` of its runs.
    """

    axes: Axes
    switching: str
    aggregator: str
    method: str

    def own(self, numbers: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of this panel."""
        return numbers[
            (numbers["switching"] == self.switching)
            & (numbers["aggregator"] == self.aggregator)
            & (numbers["method"] == self.method)
        ]


def panels(results: Results, height: float, **shared: Any) -> tuple[Figure, Iterator[Panel]]:
    """Return a picture with one row per kind of attack and rule, and one column per beta."""
    planned = results.planned
    rows = list(
        planned[["switching", "aggregator"]].drop_duplicates().itertuples(index=False, name=None)
    )
    rows.sort(key=lambda row: row[0] != "static")
    columns = planned.drop_duplicates("method")[["method", "spec"]].itertuples(
        index=False, name=None
    )
    betas = {method: spec["method"]["beta"] for method, spec in columns}
    height = 0.65 * height if narrow() else height
    figure, axes = blank(len(rows), len(betas), width=PAGE, height=height, sharex=True, **shared)
    return figure, _filled(axes, rows, betas)


def _filled(
    axes: np.ndarray[Any, Any], rows: list[tuple[str, str]], betas: dict[str, float]
) -> Iterator[Panel]:
    for place, (row, (switching, aggregator)) in enumerate(zip(axes, rows, strict=True)):
        kind = "static" if switching == "static" else "dynamic"
        for column, (axis, (method, beta)) in enumerate(zip(row, betas.items(), strict=True)):
            words, name = (
                f"{kind} attack, {RULES.get(aggregator, aggregator)}",
                f"{BETA} = {beta:g}",
            )
            if narrow():  # the row's words are above its middle panel, beta above the first row
                words = words if column == len(betas) // 2 else ""
                axis.set_title(f"{words}\n{name}" if place == 0 else words)
            else:
                axis.set_title(f"{words}, {name}")
            yield Panel(axis, switching, aggregator, method)


def strengths(results: Results) -> tuple[dict[str, str], dict[str, Line], dict[str, float]]:
    """Return label, look and lambda of each strength of the attack, by the text of the attack."""
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
    return labels, lines, values


def explained(
    labels: dict[str, str], lines: dict[str, Line]
) -> tuple[dict[str, str], dict[str, Line]]:
    """Return labels and looks for a legend, each strength once."""
    once = {label: attack for attack, label in reversed(labels.items())}
    ordered = {attack: label for label, attack in reversed(once.items())}
    return ordered, {attack: lines[attack] for attack in ordered}
