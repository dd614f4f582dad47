"""The figure ``kappa``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Engine

from dynabro_cli.answers.analysis.columns import short
from dynabro_cli.answers.figures._api import Drawn, record
from dynabro_cli.answers.figures._panels import blank, write_above
from dynabro_cli.answers.figures._style import LINES, narrow
from dynabro_cli.core.errors import DatabaseError, NotFoundError
from dynabro_cli.runs.store.open.translation import shown, translated_errors
from dynabro_cli.runs.store.open.value_types import unsound_rows
from dynabro_cli.runs.store.read.queries import query
from dynabro_cli.runs.store.tables import verified_kappa

COLUMNS = (
    "rule",
    "workers",
    "byzantine",
    "empirical",
    "unbounded",
    "proved",
    "searches",
    "evaluations",
)
ROW = 0.16
"""Height of a rule's line, in inches."""


@record("kappa", table="verified_kappa")
def draw(engine: Engine, where: str | None) -> Drawn:
    """Largest ratio of (delta, kappa)-robustness found for each rule, beside its proved kappa; one
    panel per (m, f).

    If there are several searches for a rule, the largest ratio counts, because each is a lower
    bound.
    """
    condition = f"WHERE ({where})" if where else ""
    verified = query(engine, f"SELECT * FROM verified_kappa {condition} ORDER BY id").frame()
    if verified.empty and where:
        raise NotFoundError(
            f"where={where}: it holds for no stored search for a kappa. Try: another condition"
        )
    if verified.empty:
        raise NotFoundError("no search for a kappa is stored here. Try: dynabro verify kappa")
    with translated_errors(engine.url), engine.connect() as connection:
        wrong = [number for (number,) in unsound_rows(connection, verified_kappa)]
    if verified["id"].isin(wrong).any():
        name = shown(engine.url)
        raise DatabaseError(
            f"{name}: values of a row of verified_kappa do not agree. Try: dynabro db check "
            f"--db {name}"
        )
    numbers = _numbers(verified)
    panels = list(numbers.groupby(["workers", "byzantine"], sort=True))
    across = 1 if narrow() else min(2, len(panels))
    lines = -(-len(panels) // across)
    most = max(len(rows) for _, rows in panels)
    figure, axes = blank(lines, across, height=0.5 + ROW * (most + 4) * lines)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_axis_off()
    for axis, ((m, f), rows) in zip(list(axes.flat), panels, strict=False):
        place = np.arange(len(rows))[::-1]
        bounded = rows["unbounded"] == 0
        ratios = rows["empirical"].clip(lower=1e-3)
        axis.plot(ratios[bounded], place[bounded], "o", color=LINES[2].color, label="found")
        edge = np.full(int((~bounded).sum()), 0.97)  # at the right edge: these ratios have no size
        look: dict[str, Any] = {
            "color": LINES[0].color,
            "transform": axis.get_yaxis_transform(),
            "linestyle": "none",
        }
        axis.plot(edge, place[~bounded], marker=">", label="found: no bound in sight", **look)
        axis.plot(
            rows["proved"].clip(lower=1e-3),
            place,
            "|",
            color="black",
            markersize=9,
            markeredgewidth=1.6,
            label="proved",
        )
        axis.set(
            xscale="log",
            yticks=place,
            title=f"m = {m}, f = {f}",
            xlabel="\N{GREEK SMALL LETTER KAPPA}",
            ylim=(-0.6, len(rows) - 0.4),
        )
        axis.set_yticklabels([short(rule, 40) for rule in rows["rule"]])
    names = axes[0, 0].get_legend_handles_labels()
    figure.legend(*names, loc="outside lower center", ncols=2 if narrow() else 3)
    title = (
        "largest ratio found (a lower bound of the true \N{GREEK SMALL LETTER KAPPA}), and "
        "the proved one"
    )
    write_above(figure, [title])
    return Drawn(figure, numbers)


def _numbers(ratios: pd.DataFrame) -> pd.DataFrame:
    """Return one row per rule, m and f: the search with the largest ratio, and the numbers of
    searches and inputs.
    """
    ratios = ratios.assign(proved=ratios["proved"].astype(float))
    groups = ratios.groupby(["rule", "workers", "byzantine"])
    best = ratios.loc[groups["empirical"].idxmax()].set_index(["rule", "workers", "byzantine"])
    counted = best.assign(
        searches=groups.size(), evaluations=groups["evaluations"].sum()
    ).reset_index()
    return counted[list(COLUMNS)].sort_values(["workers", "byzantine", "rule"], ignore_index=True)
