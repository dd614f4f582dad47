"""The figure ``momentum-fails-paths``."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dynabro_cli.figures._api import Drawn, figure
from dynabro_cli.figures._data import Results
from dynabro_cli.figures._panels import entitle, legend
from dynabro_cli.figures._quadratic import BY, explained, panels, strengths

MARGIN = 0.3


@figure("momentum-fails-paths", sweep="momentum-fails-paths", reference="DynaBRO (ICML 2024), Figure 4")
def draw(results: Results) -> Drawn:
    """Paths of x_t on the contours of the 2D quadratic, one per strength, under static and dynamic attacks."""
    numbers = _paths(results)
    labels, lines, _ = strengths(results)
    picture, grid = panels(results, 9.2, sharey=True)
    for panel in grid:
        own = panel.own(numbers)
        _contours(panel.axes, numbers, results.planned.iloc[0]["spec"]["task"]["condition"])
        shown = [attack for attack in lines if (own["attack"] == attack).any()]
        for place, attack in enumerate(shown):
            line, size = lines[attack], 8.0 - 1.2 * place  # ends that coincide stay visible, one within the other
            path = own[own["attack"] == attack]
            if not path.empty:
                panel.axes.plot(path["x1"], path["x2"], color=line.color, linestyle=line.dash, linewidth=0.9)
                look: dict[str, Any] = {"markersize": size, "markerfacecolor": "none", "markeredgecolor": line.color}
                panel.axes.plot(path["x1"].tail(1), path["x2"].tail(1), line.marker, zorder=5, **look)
        panel.axes.plot(0, 0, "*", color="black", markersize=6, zorder=4)
        panel.axes.grid(visible=False)
        panel.axes.set(xlabel="x\N{SUBSCRIPT ONE}", ylabel="x\N{SUBSCRIPT TWO}")
        panel.axes.set_aspect("equal")
        panel.axes.label_outer()
    legend(picture, *explained(labels, lines))
    entitle(picture, results, "quadratic, m = 3, one Byzantine worker; the star is x*, markers are the ends", numbers, "")
    return Drawn(picture, numbers.drop(columns=["n", "diverged"]))


def _paths(results: Results) -> pd.DataFrame:
    """Return x_t at the evaluations of the first seed of each cell: one row per point, with its cell."""
    runs = results.runs.drop_duplicates(list(BY))
    rows = results.evaluations.merge(runs[["id", "seed", "status", *BY]], left_on="run_id", right_on="id")
    points = rows["x"].map(lambda text: json.loads(text) if text else [np.nan, np.nan])
    rows = rows.assign(x1=points.str[0], x2=points.str[1], n=1, diverged=rows["status"] == "diverged")
    return rows[[*BY, "seed", "budget", "x1", "x2", "n", "diverged"]]


def _contours(axes: Axes, numbers: pd.DataFrame, condition: float) -> None:
    """Draw contours of f(x) = 1/2 x^T A x, where A has the eigenvalue ``condition`` along (1, 1), and 1 across."""
    low, high = numbers[["x1", "x2"]].min() - MARGIN, numbers[["x1", "x2"]].max() + MARGIN
    x1, x2 = np.meshgrid(np.linspace(low["x1"], high["x1"], 80), np.linspace(low["x2"], high["x2"], 80))
    f = 0.25 * (condition * (x1 + x2) ** 2 + (x1 - x2) ** 2)
    axes.contour(x1, x2, f, levels=np.geomspace(0.1, max(1.0, f.max()), 10), colors="#bbbbbb", linewidths=0.4)
