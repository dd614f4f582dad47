"""Common parts of the plots of any runs: which column is shown where, and names of series."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from dynabro_cli.errors import SpecError, did_you_mean
from dynabro_cli.experiment.label import CELL, OTHERS, telling_apart
from dynabro_cli.experiment.spec import fields
from dynabro_cli.figures._data import Results
from dynabro_cli.figures._panels import TASKS
from dynabro_cli.figures._style import method_label, rate, rate_axis, short

COLUMNS = tuple(name for name in (*CELL, *OTHERS) if name != "seed" and fields()[name].result)
"""Columns of ``runs`` in which runs of one experiment can differ, besides the seed."""
METRICS = {
    "accuracy": ("test_accuracy", "final_accuracy", "test accuracy"),
    "loss": ("test_loss", "final_loss", "test loss"),
    "gap": ("gap", "final_gap", "f(x) - f*"),
    "dip": ("", "dip", "accuracy lost after a switch"),
    "largest_dip": ("", "largest_dip", "largest loss of accuracy after a switch"),
    "recovery_rounds": ("", "recovery_rounds", "rounds to recover from a switch"),
    "recovery_budget": ("", "recovery_budget", "gradient computations to recover"),
    "worst_window": ("", "worst_window", "accuracy in the worst window"),
    "acceptance": ("", "acceptance", "acceptance ratio of Byzantine messages"),
    "aggregation_error": ("", "aggregation_error", "aggregation error"),
}
"""Metrics: column in ``evaluations``, column in ``runs`` or ``recovery``, and name on an axis.

For a column of ``recovery``, the first is empty, and a run has at most one number.
"""
LOWEST_IS_WORST = ("final_accuracy", "worst_window")
MOST_PANELS, MOST_SERIES = 12, 16


class Metric(NamedTuple):
    """A metric: its column in ``evaluations``, the column of a run's single number, and its name on an axis."""

    along: str
    final: str
    label: str

    @property
    def title(self) -> str:
        """The name of the single number."""
        return f"final {self.label}" if self.along else self.label


def metric_of(results: Results, name: str | None, *, along: bool = False) -> Metric:
    """Return the metric called ``name``; by default accuracy, or the gap if no run has an accuracy.

    Raises:
        SpecError: There is no such metric, no run has it, or a curve ``along`` a run is wanted and it is a single number.
    """
    if name is None:
        name = "accuracy" if results.runs["final_accuracy"].notna().any() else "gap"
    if name not in METRICS:
        raise SpecError(f"metric={name} is not legal{did_you_mean(name, METRICS)}; legal: {', '.join(METRICS)}")
    metric = Metric(*METRICS[name])
    if along and not metric.along:
        raise SpecError(f"metric={name} is one number per run, not a curve. Try: dynabro plot final --metric {name}")
    if not results.runs[metric.final].notna().any():
        raise SpecError(f"no run here has a number for metric={name}. Try: another one of {', '.join(METRICS)}")
    return metric


def having(results: Results, metric: Metric) -> Results:
    """Return the runs that have the metric: for a column of ``recovery``, the runs that have a number."""
    return results if metric.along else dataclasses.replace(results, runs=results.runs[results.runs[metric.final].notna()])


def column_of(option: str, name: str, legal: Sequence[str] = (*COLUMNS, "seed", "sweep")) -> str:
    """Return ``name`` if it is a legal column for an option.

    Raises:
        SpecError: ``name`` is not a legal column.
    """
    if name not in legal:
        raise SpecError(f"{option}={name} is not a column to plot by{did_you_mean(name, legal)}; legal: {', '.join(legal)}")
    return name


def with_series(runs: pd.DataFrame, hue: str | None, shown: Sequence[str | None]) -> pd.DataFrame:
    """Return the runs with a column ``series``: the value of ``hue``, and of everything else in which runs differ and that is
    not shown.

    So a line is always a mean over seeds only.
    """
    given = [name for name in (*shown, hue) if name]
    parts = ([hue] if hue else []) + telling_apart(runs.to_dict("records"), COLUMNS, given)
    texts = [
        _methods(runs) if name == "method" else runs[name].map(lambda value, name=name: text_of(name, value)) for name in parts
    ]
    return runs.assign(series=[", ".join(words) for words in zip(*texts, strict=True)] if texts else "all runs")


def _methods(runs: pd.DataFrame) -> pd.Series:
    """Return the methods as a legend has them; as they are typed if two of them have the same words."""
    labels = runs["spec"].map(lambda spec: method_label(spec["method"]))
    shared = runs.groupby(labels)["method"].transform("nunique") > 1
    return labels.where(~shared, runs["method"])


def text_of(name: str, value: Any) -> str:
    """Return a value for a legend or title; numbers have their column's name."""
    if name == "task":
        return TASKS.get(value, str(value))
    if name == "attack_entry":
        return f"attack enters at the {value}"
    if name == "clock":
        return f"identities change by the {value}"
    if isinstance(value, str):
        return value
    return f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"


def ordered(runs: pd.DataFrame, column: str) -> list[Any]:
    """Return the values of a column from left to right: numbers by size, K up to infinity, words in order of appearance."""
    values = list(dict.fromkeys(runs[column]))
    if column != "switching":
        return sorted(values) if all(isinstance(value, int | float) for value in values) else values
    first = runs.drop_duplicates("switching")
    specs = {text: spec["switching"] for text, spec in zip(first["switching"], first["spec"], strict=True)}
    return sorted(values, key=lambda text: _pace(specs[text]))


def _pace(strategy: dict[str, Any]) -> tuple[int, float, str]:
    if strategy["name"] == "periodic" and isinstance(strategy.get("K"), int) and strategy["K"] < 2**63:
        return 0, float(strategy["K"]), ""
    return (2, 0.0, "") if strategy["name"] == "static" else (1, 0.0, json.dumps(strategy))


def tick(runs: pd.DataFrame, column: str, value: Any) -> str:
    """Return a value for an axis; switching rates as K if all strategies have one."""
    if column == "switching" and all(spec["switching"]["name"] in ("periodic", "static") for spec in runs["spec"]):
        first = runs[runs["switching"] == value].iloc[0]
        return rate(first["spec"]["switching"])
    return short(str(value), 24)


def axis_label(runs: pd.DataFrame, column: str) -> str:
    """Return the name of an axis that shows a column."""
    if column == "switching" and all(spec["switching"]["name"] in ("periodic", "static") for spec in runs["spec"]):
        return rate_axis(runs["clock"])
    return column.replace("_", " ")


def panels_of(runs: pd.DataFrame, facet: str | None) -> list[tuple[str, pd.DataFrame]]:
    """Yield the runs of each panel, with its title.

    Raises:
        SpecError: There are too many panels to read.
    """
    if facet is None:
        return [("", runs)]
    values = ordered(runs, facet)
    if len(values) > MOST_PANELS:
        raise SpecError(f"facet={facet} has {len(values)} values, and {MOST_PANELS} panels can be read. Try: --where")
    return [(text_of(facet, value), runs[runs[facet] == value]) for value in values]


def few_enough(names: Sequence[str]) -> Sequence[str]:
    """Return ``names`` of series.

    Raises:
        SpecError: There are too many series to distinguish.
    """
    if len(names) > MOST_SERIES:
        raise SpecError(
            f"the runs differ in {len(names)} ways, and {MOST_SERIES} lines can be told apart; narrow them with --where, "
            "or show a column with --facet"
        )
    return names


def apart(**shown: str | None) -> None:
    """Raise SpecError if two options show the same column."""
    options: dict[str, str] = {}
    for option, column in shown.items():
        if column is not None and column in options:
            raise SpecError(f"{option}={column}: --{options[column]} shows this column. Try: another column for one of them")
        if column is not None:
            options[column] = option


def default_facet(runs: pd.DataFrame, choice: str | None, shown: Sequence[str | None]) -> str | None:
    """Return the requested facet, or the task if there are several."""
    if choice is not None:
        return column_of("facet", choice)
    return "task" if runs["task"].nunique() > 1 and "task" not in shown else None
