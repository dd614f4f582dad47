"""The figure ``search``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sqlalchemy import Engine

from dynabro_cli.answers.analysis.columns import short
from dynabro_cli.answers.analysis.diverged import DIVERGED
from dynabro_cli.answers.analysis.searches import About, Searches, numbers_of, read_searches
from dynabro_cli.answers.figures._api import Drawn, record
from dynabro_cli.answers.figures._panels import (
    blank,
    finite_limits,
    mark_diverged,
    panel_grid,
    write_above,
)
from dynabro_cli.answers.figures._style import LINES, narrow, note_size
from dynabro_cli.core.errors import NotFoundError

MOST_SLICES, MOST_HISTORIES = 8, 48
SPAN = 30.0
"""Ratio of the largest to the smallest value of a choice above which its axis is logarithmic."""
FOUND, TRIED = LINES[0].color, LINES[2].color
LOST = "x: trials with a diverged run"


@record("search", table="trials")
def draw(engine: Engine, where: str | None) -> Drawn:
    """Trials of stored searches: every value, and the best one so far; of one search also the value
    against each choice.

    A line marks the mean of the best repetition with the seeds of ``then``: the best value of many
    noisy trials is optimistic, and the distance between the two shows by how much.

    Raises:
        NotFoundError: No trial has a finite value.
    """
    searches = read_searches(engine, where)
    names = list(dict.fromkeys(searches.trials["search"]))[:MOST_HISTORIES]
    numbers = pd.concat([_numbers(searches, name) for name in names], ignore_index=True)
    if not np.isfinite(numbers["best"]).any():
        counts = ", ".join(
            f"{count} {status}" for status, count in numbers["status"].value_counts().items()
        )
        raise NotFoundError(
            f"{', '.join(names)}: no trial has a finite value ({counts}). Try: dynabro search, "
            "with --retry-failed for trials "
            "that failed"
        )
    figure = (
        _single(searches, names[0], numbers)
        if len(names) == 1
        else _several(searches, names, numbers)
    )
    return Drawn(figure, numbers.drop(columns="parameters"))


def _numbers(searches: Searches, name: str) -> pd.DataFrame:
    """Return a row per trial: its value, the best so far, its choices as text, the mean of its
    repetitions, and the number of its diverged runs.
    """
    trials, about = searches.trials[searches.trials["search"] == name], searches.of(name)
    finite = trials["value"].where(trials["status"] == "finished")
    best = finite.cummax() if about.maximize else finite.cummin()
    repetitions = searches._replace(trials=trials).repetitions()
    repeated = [float(numbers_of(runs, about.goal).mean()) for _, runs in repetitions]
    choices = trials["parameters"].map(
        lambda parameters: ", ".join(f"{key}={_text(value)}" for key, value in parameters.items())
    )
    lost = {*searches.runs.loc[searches.runs["status"] == DIVERGED, "run_key"]}
    diverged = trials["run_keys"].map(lambda keys: len(lost.intersection(keys)))
    kept = trials[["search", "number", "status", "value", "parameters"]]
    return kept.assign(best=best.ffill(), repeated=repeated, choices=choices, diverged=diverged)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _history(axes: Axes, trials: pd.DataFrame, about: About) -> None:
    done = trials[np.isfinite(trials["value"]) & (trials["status"] == "finished")]
    axes.plot(done["number"], done["value"], ".", color=TRIED, markersize=3, label="a trial")
    axes.step(
        trials["number"],
        trials["best"].replace([np.inf, -np.inf], np.nan),
        where="post",
        color=FOUND,
        label="best so far",
    )
    repeated = trials["repeated"].max() if about.maximize else trials["repeated"].min()
    if not math.isnan(repeated):
        axes.axhline(
            repeated,
            color="black",
            linestyle=(0, (3, 2)),
            linewidth=0.9,
            label="best of the repetitions",
        )
    lost = trials[trials["status"].isin(("pruned", "failed"))]
    if len(lost):
        axes.plot(
            lost["number"],
            [0.02] * len(lost),
            "|",
            transform=axes.get_xaxis_transform(),
            color="#888888",
            markersize=5,
            label="pruned or failed",
        )
    ended = trials["value"].where(trials["status"] == "finished")
    mark_diverged(axes, trials["number"], trials.assign(mean=ended), TRIED)


def _single(searches: Searches, name: str, numbers: pd.DataFrame) -> Figure:
    """Return the history above, and a panel per choice below."""
    about = searches.of(name)
    keys = sorted(
        {key for parameters in numbers["parameters"] for key in parameters},
        key=lambda key: (key.count("."), key),
    )[:MOST_SLICES]
    across = 1 if narrow() else min(3, max(1, len(keys)))
    down = -(-len(keys) // across)
    figure, axes = blank(1 + down, across, height=2.3 + 2.0 * down)
    grid = axes[0, 0].get_gridspec()
    for axis in axes[0]:
        axis.remove()
    above = figure.add_subplot(grid[0, :])
    _history(above, numbers, about)
    above.set(xlabel="trial", ylabel=about.title)
    done = numbers[numbers["status"] == "finished"]
    for place, axis in enumerate(axes[1:].flat):
        if place >= len(keys):
            axis.set_axis_off()
        else:
            _slice(axis, done, keys[place], first=place % across == 0, about=about)
    figure.legend(
        *above.get_legend_handles_labels(), loc="outside lower center", ncols=1 if narrow() else 4
    )
    lost = f"; {LOST}" if numbers["diverged"].any() else ""
    what = f"{name}: {len(numbers)} trials; below, the value against each choice{lost}"
    write_above(figure, [what])
    return figure


def _slice(axis: Axes, done: pd.DataFrame, key: str, *, first: bool, about: About) -> None:
    with_key = done[done["parameters"].map(lambda parameters: key in parameters)]
    values = with_key["parameters"].map(lambda parameters: parameters[key])
    at = values
    if all(isinstance(value, int | float) for value in values):
        if len(values) and min(values) > 0 and max(values) / min(values) > SPAN:
            axis.set_xscale("log")
    else:
        words = sorted(set(values))
        # so that equal points are seen
        shift = np.random.default_rng(0).uniform(-0.25, 0.25, len(values))
        at = values.map(words.index) + shift
        axis.set_xticks(
            range(len(words)),
            [short(word.partition("{")[0].rstrip("="), 16) for word in words],
            rotation=90,
        )
    axis.plot(
        at, with_key["value"].replace([np.inf, -np.inf], np.nan), ".", color=TRIED, markersize=3
    )
    mark_diverged(axis, at, with_key.assign(mean=with_key["value"]), TRIED)
    axis.set_ylim(_limits(done["value"]))
    axis.set_xlabel(short(".".join(key.split(".")[-2:]), 28))
    if first:
        axis.set_ylabel(about.title)


def _limits(values: pd.Series[Any]) -> tuple[float, float]:
    """Return the limits of an axis that all panels share."""
    low, high = finite_limits(values)
    margin = 0.05 * (high - low) or 0.05
    return low - margin, high + margin


def _several(searches: Searches, names: list[str], numbers: pd.DataFrame) -> Figure:
    """Return a history per search."""
    figure, axes = panel_grid(len(names), height=1.4, across=4, rest=0.8, sharey=True)
    for name, axis in zip(names, axes, strict=True):
        _history(axis, numbers[numbers["search"] == name], searches.of(name))
        axis.set_title(name.partition(": ")[2] or name, fontsize=note_size(5.5))
        axis.set(xlabel="trial", ylabel=searches.of(names[0]).title)
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=1 if narrow() else 4,
    )
    if numbers["diverged"].any():
        write_above(figure, [LOST])
    return figure
