"""The figure ``digits-worst-case``."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dynabro_cli.figures._api import Drawn, figure
from dynabro_cli.figures._data import Results
from dynabro_cli.figures._matrix import SHARES, draw_matrix
from dynabro_cli.figures._numbers import final_values
from dynabro_cli.figures._panels import blank, entitle, methods
from dynabro_cli.figures._style import rate

NO_ATTACK, WORST = "none", "worst"
WIDTH, ROW = 17.0, 0.25


@figure("digits-worst-case", sweep="digits-worst-case", reference="dynabro's own; the rules and attacks name theirs")
def draw(results: Results) -> Drawn:
    """Final accuracy on digits of every aggregator under every attack, and under the worst, with identities fixed and changing.

    One panel per method and switching strategy; numbers are means over seeds. The column of the worst attack has the lowest
    mean of a row, with its attack; ``none`` does not count as an attack.
    """
    cells = final_values(results, ("method", "switching", "aggregator", "attack")).assign(
        name=lambda own: _names(own["attack"])
    )
    worst = _worst(cells)
    plan = results.planned
    rules, attacks = list(dict.fromkeys(plan["aggregator"])), list(dict.fromkeys(_names(plan["attack"])))
    labels, strategies = methods(results), list(dict.fromkeys(plan["switching"]))
    picture, axes = blank(len(labels), len(strategies), width=WIDTH, height=(1.3 + ROW * len(rules)) * len(labels))
    for line, (method, label) in zip(axes, labels.items(), strict=True):
        for panel, strategy in zip(line, strategies, strict=True):
            own, lowest = (table[(table["method"] == method) & (table["switching"] == strategy)] for table in (cells, worst))
            means = own.pivot(index="aggregator", columns="name", values="mean").reindex(rules, columns=attacks)
            lowest = lowest.set_index("aggregator").reindex(rules)
            values = np.column_stack([lowest["mean"].to_numpy(dtype=float), means.to_numpy(dtype=float)])
            notes = [[name, *[""] * len(attacks)] for name in lowest["name"].fillna("")]
            places = draw_matrix(panel, values, notes, SHARES, [2.5, *[1.0] * len(attacks)])
            panel.axvline(2.0, color="white", linewidth=2)
            panel.set_xticks(places, [WORST, *attacks], rotation=45, ha="right")
            panel.set_yticks(range(len(rules)), rules)
            panel.set_title(f"{label}, {_words(plan, strategy)}")
    row = plan.iloc[0]
    title = f"digits, every rule against every attack, m = {row['workers']}, f = {row['byzantine']}, budget {row['budget']:,}"
    entitle(picture, results, title, cells.assign(diverged=0), "")  # diverged runs are not marked here
    return Drawn(picture, cells.drop(columns="name").assign(worst=cells.index.isin(worst.index)))


def _worst(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cell of each method, strategy and rule with the lowest mean under an attack; a missing mean counts as the
    lowest.
    """
    attacked = cells[cells["attack"] != NO_ATTACK]
    order = attacked["mean"].fillna(-np.inf)
    places = order.groupby([attacked[name] for name in ("method", "switching", "aggregator")], sort=False).idxmin()
    return attacked.loc[places]


def _names(attacks: pd.Series) -> pd.Series:
    """Return attacks without their parameters, which are written differently for other methods."""
    return attacks.str.partition(":")[0]


def _words(plan: pd.DataFrame, strategy: str) -> str:
    """Describe a strategy with the paper's letter for its rate."""
    spec = plan.loc[plan["switching"] == strategy, "spec"].iloc[0]
    return "identities fixed" if spec["switching"]["name"] == "static" else f"switching, K = {rate(spec['switching'])}"
