"""The grid of panels of both figures of the quadratic: static attacks above dynamic ones, one column per beta."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynabro_cli.figures._data import Results
from dynabro_cli.figures._panels import RULES, blank
from dynabro_cli.figures._style import BETA, PAGE, STRENGTHS, Line, narrow

BY = ("switching", "aggregator", "method", "attack")
LAMBDA = "\N{GREEK SMALL LETTER LAMDA}"


class Panel(NamedTuple):
    """One panel: its place, and the values of the columns ``switching``, ``aggregator`` and ``method`` of its runs."""

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
    rows = list(planned[["switching", "aggregator"]].drop_duplicates().itertuples(index=False, name=None))
    rows.sort(key=lambda row: row[0] != "static")
    columns = planned.drop_duplicates("method")[["method", "spec"]].itertuples(index=False, name=None)
    betas = {method: spec["method"]["beta"] for method, spec in columns}
    height = 0.65 * height if narrow() else height
    figure, axes = blank(len(rows), len(betas), width=PAGE, height=height, sharex=True, **shared)
    return figure, _filled(axes, rows, betas)


def _filled(axes: np.ndarray[Any, Any], rows: list[tuple[str, str]], betas: dict[str, float]) -> Iterator[Panel]:
    for place, (row, (switching, aggregator)) in enumerate(zip(axes, rows, strict=True)):
        kind = "static" if switching == "static" else "dynamic"
        for column, (axis, (method, beta)) in enumerate(zip(row, betas.items(), strict=True)):
            words, name = f"{kind} attack, {RULES.get(aggregator, aggregator)}", f"{BETA} = {beta:g}"
            if narrow():  # the row's words are above its middle panel, beta above the first row
                words = words if column == len(betas) // 2 else ""
                axis.set_title(f"{words}\n{name}" if place == 0 else words)
            else:
                axis.set_title(f"{words}, {name}")
            yield Panel(axis, switching, aggregator, method)


def strengths(results: Results) -> tuple[dict[str, str], dict[str, Line], dict[str, float]]:
    """Return label, look and lambda of each strength of the attack, by the text of the attack."""
    first = results.planned.drop_duplicates("attack")
    values = {attack: float(spec["attack"]["lambda"]) for attack, spec in zip(first["attack"], first["spec"], strict=True)}
    distinct = sorted(set(values.values()))
    labels = {attack: f"{LAMBDA} = {value:g}" for attack, value in values.items()}
    lines = {attack: STRENGTHS[distinct.index(value) % len(STRENGTHS)] for attack, value in values.items()}
    return labels, lines, values


def explained(labels: dict[str, str], lines: dict[str, Line]) -> tuple[dict[str, str], dict[str, Line]]:
    """Return labels and looks for a legend, each strength once."""
    once = {label: attack for attack, label in reversed(labels.items())}
    ordered = {attack: label for label, attack in reversed(once.items())}
    return ordered, {attack: lines[attack] for attack in ordered}
