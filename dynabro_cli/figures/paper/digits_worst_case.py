"""The figure ``digits-worst-case``."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dynabro_cli.analysis.cells import final_values, worst_of
from dynabro_cli.analysis.columns import switching_rate
from dynabro_cli.analysis.results import Results, rows_with
from dynabro_cli.figures._api import Drawn, figure
from dynabro_cli.figures._panels import SHARES, blank, draw_matrix, method_labels, write_plan_title
from dynabro_cli.figures._style import narrow, note_size

NO_ATTACK, WORST, WIDE = "none", "worst", 9.5
ROW = 0.021
"""Height of a rule's row, in inches per point of its text."""
SIZE = 6.0


@figure(
    "digits-worst-case",
    sweep="digits-worst-case",
    reference="dynabro's own; the rules and attacks name theirs",
)
def draw(results: Results) -> Drawn:
    """Final accuracy on digits of every aggregator under every attack, and under the worst, with
    identities fixed and changing.

    One panel per method and switching strategy; numbers are means over seeds. The column of the
    worst attack has the lowest mean of a row, with its attack; ``none`` does not count as an
    attack. A picture of the width of a column has only these.
    """
    cells = final_values(results, ("method", "switching", "aggregator", "attack")).assign(
        name=lambda frame: _names(frame["attack"])
    )
    attacked = cells[cells["attack"] != NO_ATTACK]
    worst = attacked[attacked.index == worst_of(attacked, ("method", "switching", "aggregator"))]
    plan = results.planned
    rules, attacks = (
        list(dict.fromkeys(plan["aggregator"])),
        list(dict.fromkeys(_names(plan["attack"]))),
    )
    labels, strategies = method_labels(results), list(dict.fromkeys(plan["switching"]))
    kinds = [
        (method, label, strategy) for method, label in labels.items() for strategy in strategies
    ]
    numbers = cells.drop(columns="name").assign(worst=cells.index.isin(worst.index))
    if narrow():
        titles = {
            (method, strategy): f"{label},\n{_words(plan, strategy)}"
            for method, label, strategy in kinds
        }
        picture = _worst_only(worst, rules, titles)
        write_plan_title(
            picture,
            results,
            "digits, the lowest mean over all attacks",
            cells.assign(diverged=0),
            "",
        )
        return Drawn(picture, numbers)
    size = note_size(SIZE)
    picture, axes = blank(
        len(kinds), 1, height=1.2 + (0.25 + ROW * size * len(rules)) * len(kinds), sharex=True
    )
    for panel, (method, label, strategy) in zip(axes[:, 0], kinds, strict=True):
        frame, lowest = (
            rows_with(table, method=method, switching=strategy) for table in (cells, worst)
        )
        means, diverged = (
            frame.pivot(index="aggregator", columns="name", values=value).reindex(
                rules, columns=attacks
            )
            for value in ("mean", "diverged")
        )
        lowest = lowest.set_index("aggregator").reindex(rules)
        values = np.column_stack(
            [lowest["mean"].to_numpy(dtype=float), means.to_numpy(dtype=float)]
        )
        words = [
            [f"{_share(value)} {name}", *[""] * len(attacks)]
            for value, name in zip(lowest["mean"], lowest["name"], strict=True)
        ]
        places, mesh = draw_matrix(
            panel, values, words, SHARES, [WIDE, *[1.0] * len(attacks)], size=size
        )
        panel.axvline(WIDE - 0.5, color="white", linewidth=2)
        for row, column in np.argwhere(diverged.fillna(0).to_numpy() > 0):
            panel.plot(
                places[column + 1], row, "x", color="red", markersize=2.5, markeredgewidth=0.7
            )
        panel.set_xticks(places, [WORST, *attacks], rotation=90)
        panel.set_yticks(range(len(rules)), rules)
        panel.tick_params(labelsize=note_size(6.5))
        panel.set_title(f"{label}, {_words(plan, strategy)}")
    picture.colorbar(mesh, ax=list(axes[:, 0]), label="final test accuracy", shrink=0.4, pad=0.02)
    write_plan_title(picture, results, "digits, every rule against every attack", cells, "")
    return Drawn(picture, numbers)


def _worst_only(worst: pd.DataFrame, rules: list[str], kinds: dict[tuple[str, str], str]) -> Figure:
    """Return a picture of the worst means alone: one row per rule, one column per method and
    strategy.
    """
    size = note_size(SIZE)
    picture, axes = blank(1, 1, height=1.8 + ROW * size * len(rules))
    panel = axes[0, 0]
    lowest = worst.set_index(["method", "switching", "aggregator"])["mean"]
    values = np.column_stack(
        [lowest.loc[method, strategy].reindex(rules) for method, strategy in kinds]
    )
    words = [[_share(value) for value in row] for row in values]
    places, mesh = draw_matrix(panel, values, words, SHARES, size=size)
    panel.set_xticks(places, list(kinds.values()), rotation=90)
    panel.set_yticks(range(len(rules)), rules)
    panel.tick_params(labelsize=size)
    picture.colorbar(mesh, ax=panel, label="final test accuracy", shrink=0.8, pad=0.02)
    return picture


def _share(value: float) -> str:
    """Return three digits of an accuracy, without the zero before the point."""
    return f"{value:.3f}".removeprefix("0")


def _names(attacks: pd.Series) -> pd.Series:
    """Return attacks without their parameters, which are written differently for other methods."""
    return attacks.str.partition(":")[0]


def _words(plan: pd.DataFrame, strategy: str) -> str:
    """Describe a strategy with the paper's letter for its rate."""
    spec = plan.loc[plan["switching"] == strategy, "spec"].iloc[0]
    return (
        "identities fixed"
        if spec["switching"]["name"] == "static"
        else f"switching, K = {switching_rate(spec['switching'])}"
    )
