"""Fields of runs that are the rows, the columns and the panels of a matrix, and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from dynabro_cli.answers.analysis.columns import (
    COLUMNS,
    RULE,
    TUNING,
    method_names,
    naming,
    ordered,
    problem_fields,
    text_of,
    tick,
    whole_rule,
)
from dynabro_cli.experiment.effect import ENTRY, READING
from dynabro_cli.experiment.spec import CHAIN

DEFENCE = ("method", "pre_aggregators", "aggregator")
"""Fields that a defender chooses, and that a matrix compares."""
ADVERSARY = ("attack", "attack_entry", "switching", "clock", "byzantine", "participation")
"""Fields that an adversary chooses, and that are the columns of a matrix."""
MOST = 20
"""Most rows before methods have a matrix each, and most columns before switching strategies do."""


class Layout(NamedTuple):
    """Fields whose values are the rows, the columns, and the matrices one below the other."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    panels: tuple[str, ...]


def layout_of(
    runs: pd.DataFrame,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    panels: Sequence[str] = (),
) -> Layout:
    """Choose the fields that are rows, columns, and separate matrices.

    By default rows are the fields of the defence that vary, columns the fields of the adversary
    that vary. A field of the problem gets a matrix per value. Every other field that distinguishes
    runs becomes part of the rows, if it tunes a defence, or gets a matrix per value: a cell is a
    mean over seeds only. Fields that follow from others, such as a learning rate per method, need
    no place.
    """
    varied = {name for name in COLUMNS if runs[name].nunique(dropna=False) > 1}
    varied |= {CHAIN for name in varied if whole_rule(name, runs) == RULE}
    free = varied.difference(columns, panels)
    names = (
        tuple(rows)
        or tuple(name for name in DEFENCE if name in free)
        or tuple(name for name in TUNING if name in free)[:1]
        or ("method",)
    )
    shown = {*names, *([*DEFENCE[1:]] if RULE in names else ())}
    above = (*panels, *problem_fields(runs, (*rows, *columns, *panels)))
    placed = (*shown, *above, *((ENTRY,) if READING in above else ()))
    chosen = [name for name in ADVERSARY if name in varied and name not in placed]
    across = tuple(columns) or tuple(naming(runs, (), chosen))
    across = across or tuple(name for name in ("attack", "switching") if name not in shown)[:1]
    if not rows and not panels and _crowded(runs, names, "method"):
        names, above = tuple(name for name in names if name != "method"), (*above, "method")
    if not columns and not panels and _crowded(runs, across, "switching"):
        across, above = tuple(name for name in across if name != "switching"), (*above, "switching")
    rest = naming(runs, (*names, *across, *above))
    tuned = tuple(name for name in rest if name in TUNING and not rows)
    return Layout((*names, *tuned), across, (*above, *(name for name in rest if name not in tuned)))


def _crowded(runs: pd.DataFrame, names: Sequence[str], name: str) -> bool:
    """Return True if ``name`` and other fields have more values than a matrix can show."""
    return name in names and len(names) > 1 and len(runs[list(names)].drop_duplicates()) > MOST


def labelled(runs: pd.DataFrame, names: Sequence[str]) -> pd.Series[Any]:
    """Return the label of each run by some fields: methods as in legends, a chain with its rule as
    ``nnm+cwtm``.
    """
    parts, remaining = [], list(names)
    if "pre_aggregators" in remaining:  # a chain is written with its rule
        remaining[remaining.index("pre_aggregators")] = RULE
        remaining = [name for name in remaining if name != "aggregator"]
    for name in remaining:
        if name == "method":
            parts.append(method_names(runs))
        elif name == RULE:
            chain = runs["pre_aggregators"].map(lambda text: "" if text == "none" else f"{text}+")
            parts.append(chain + runs["aggregator"])
        elif name == "switching":
            ticks = {value: tick(runs, name, value) for value in runs[name].unique()}
            ticks = (
                ticks
                if len(set(ticks.values())) == len(ticks)
                else {value: str(value) for value in ticks}
            )
            short = all(len(text) < 6 for text in ticks.values())
            parts.append(
                runs[name].map(
                    lambda text, ticks=ticks, short=short: (
                        f"K={ticks[text]}" if short else ticks[text]
                    )
                )
            )
        else:
            parts.append(runs[name].map(lambda cell, name=name: text_of(name, cell)))
    if not parts:
        return pd.Series("", index=runs.index)
    return pd.Series(
        [", ".join(map(str, words)) for words in zip(*parts, strict=True)], index=runs.index
    )


def label_order(runs: pd.DataFrame, names: Sequence[str], labels: pd.Series[Any]) -> list[str]:
    """Return the labels in the order of the fields' values, the first field first."""
    places = [{value: place for place, value in enumerate(ordered(runs, name))} for name in names]
    keys = runs[list(names)].itertuples(index=False, name=None)
    by_label = {
        label: tuple(place.get(value, len(place)) for place, value in zip(places, key, strict=True))
        for label, key in zip(labels, keys, strict=True)
    }
    return sorted(by_label, key=lambda label: by_label[label])
