"""Means and spreads over seeds, curves, and shares of rounds: one row per cell or point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dynabro_cli.answers.analysis.diverged import DIVERGED
from dynabro_cli.answers.analysis.metrics import METRICS
from dynabro_cli.answers.analysis.paired_tests import half_width
from dynabro_cli.answers.analysis.pairs import IDENTITIES
from dynabro_cli.answers.analysis.results import Results, check_means
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration import format_value

ACCURACIES = ("final_accuracy", "test_accuracy", "worst_window")
"""Columns whose numbers are between 0 and 1."""
RUNS = "runs"
"""Column of curves with the numbers of the single runs at a point."""
MOST_POINTS = 1_000_000
"""Most points of a curve."""


def final_values(
    results: Results, by: Sequence[str], value: str = "final_accuracy", *, interval: bool = False
) -> pd.DataFrame:
    """Return mean and standard deviation over seeds of a number that every run has at its end.

    Args:
        results: The runs.
        by: Columns of ``runs`` whose values distinguish the points.
        value: The number.
        interval: Bars are Student's 95% interval of the mean, instead of the standard deviation.

    Returns:
        One row per point, in the order of first appearance: ``by``, ``mean``, ``std`` (ddof 1; NaN
        for one seed), ``n`` seeds, ``diverged``, the number of diverged runs, and ``low`` and
        ``high``, the ends of the bar within the range of the number.

    Raises:
        SpecError: The runs of a point differ in more than their seed.
    """
    check_means(results.runs, by)
    groups = results.runs.assign(diverged=results.runs["status"] == DIVERGED).groupby(
        list(by), sort=False, dropna=False
    )
    points = seed_means(groups[value]).assign(diverged=groups["diverged"].sum()).reset_index()
    half = half_width(points["std"], points["n"]) if interval else points["std"]
    low, high = clipped(points["mean"] - half, points["mean"] + half, value)
    return points.assign(low=low, high=high)


def seed_means(groups: Any) -> pd.DataFrame:
    """Return ``mean``, ``std`` (ddof 1; NaN for one) and ``n`` of each group of a grouped column; a
    NaN among the numbers makes mean and std NaN.
    """
    # pandas skips NaN by default: a cell would look better for the runs that it lost
    columns = {
        "mean": groups.agg(lambda values: values.mean(skipna=False)),
        "std": groups.agg(lambda values: values.std(ddof=1, skipna=False)),
        "n": groups.size(),
    }
    return pd.DataFrame(columns)


def worst_of(cells: pd.DataFrame, by: Sequence[str], *, higher: bool = True) -> pd.Series[Any]:
    """Return, for each cell, the place of the cell with the worst mean among those with the same
    values of ``by``; an undefined mean is worse than any other, and of equal ones the first counts.

    Args:
        cells: Rows with ``mean`` and ``by``.
        by: Columns.
        higher: True if more is better.
    """
    # idxmin would pass over an undefined mean
    scores = (cells["mean"] if higher else -cells["mean"]).fillna(-np.inf)
    keys = [cells[name] for name in by]
    return scores.groupby(keys, sort=False, dropna=False).transform("idxmin")


def clipped(low: Any, high: Any, value: str) -> tuple[Any, Any]:
    """Return the ends of a bar or band, cut to 0 and 1 if the number is an accuracy."""
    return (np.clip(low, 0, 1), np.clip(high, 0, 1)) if value in ACCURACIES else (low, high)


def with_std(curves: pd.DataFrame, value: str) -> pd.DataFrame:
    """Return curves whose ``low`` and ``high`` are one standard deviation from the mean."""
    low, high = clipped(curves["mean"] - curves["std"], curves["mean"] + curves["std"], value)
    return curves.assign(low=low, high=high)


def curves(results: Results, by: Sequence[str], value: str = "test_accuracy") -> pd.DataFrame:
    """Return mean, standard deviation and the 95% confidence interval of the mean over seeds, along
    the budget.

    Rounds of different cost reach different budgets, so each run is read at the multiples of
    ``eval_every``, on the straight line between its evaluations. A run that diverged keeps its last
    finite value until then, and has the number that it counts as from there on. The interval is
    Student's, mean +- t s/sqrt(n).

    Args:
        results: The runs.
        by: Columns of ``runs`` whose values distinguish the curves.
        value: A column of ``evaluations``.

    Returns:
        One row per point of a curve: ``by``, ``budget``, ``samples`` (of all workers), ``mean``,
        ``std``, ``low``, ``high`` (all three NaN for one seed), ``n``, ``diverged``, and ``RUNS``.

    Raises:
        SpecError: The runs of a curve differ in more than their seed.
    """
    check_means(results.runs, by, along=True)
    frames = []
    end = next((metric.final for metric in METRICS.values() if metric.along == value), value)
    needed = dict.fromkeys([*by, "id", "budget", "eval_every", "batch_size", "workers", "status"])
    needed |= dict.fromkeys(["budget_spent", end])
    chosen = results.runs[[*needed]]  # all columns would make each group slow
    for run in chosen.loc[chosen["budget"] / chosen["eval_every"] > MOST_POINTS, "id"]:
        raise SpecError(
            f"run {run} has more than {MOST_POINTS:,} evaluations. Try: others, with --where "
            f"'id <> {run}'"
        )
    evaluations = dict(tuple(results.along(value).groupby("run_id")))
    for key, runs in chosen.groupby(list(by), sort=False, dropna=False):
        first = runs.iloc[0]
        grid = np.unique(
            np.append(np.arange(0, first["budget"] + 1, first["eval_every"]), first["budget"])
        )
        read = [
            _along(grid, evaluations[run], value, spent if status == DIVERGED else None, last)
            for run, status, spent, last in zip(
                runs["id"], runs["status"], runs["budget_spent"], runs[end], strict=True
            )
            if run in evaluations
        ]
        if not read:
            continue
        values = np.stack(read)  # [seeds, points]
        count = len(values)
        with np.errstate(invalid="ignore"):  # a spread of infinite losses
            std = values.std(0, ddof=1) if count > 1 else np.full(len(grid), np.nan)
        half = half_width(std, count)
        mean = values.mean(0)
        low, high = clipped(mean - half, mean + half, value)
        numbers = {
            "budget": grid,
            "samples": grid * int(first["batch_size"]) * int(first["workers"]),
            "mean": mean,
            "std": std,
            "low": low,
            "high": high,
            "n": count,
            "diverged": int((runs["status"] == DIVERGED).sum()),
            RUNS: list(values.T),
        }
        frames.append(pd.DataFrame(dict(zip(by, key, strict=True)) | numbers))
    columns = [*by, "budget", "samples", "mean", "std", "low", "high", "n", "diverged", RUNS]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


def _along(
    grid: np.ndarray[Any, Any], points: pd.DataFrame, value: str, end: int | None, last: float
) -> np.ndarray[Any, Any]:
    """Return the numbers of a run at the budgets of a grid; ``last`` from ``end`` on, if the run
    diverged there.
    """
    if end is None:
        return np.asarray(np.interp(grid, points["budget"], points[value]))
    points = points[np.isfinite(points[value].astype(float))]
    # np.interp repeats the last value
    line = np.interp(grid, points["budget"], points[value]) if len(points) else last
    counted: np.ndarray[Any, Any] = np.where(grid < end, line, last)
    return counted


def fractions(results: Results, by: Sequence[str]) -> pd.DataFrame:
    """Return the share of rounds with each fraction of Byzantine workers, over all rounds of the
    runs of a cell.

    Returns:
        One row per bar: ``by``, ``byzantine``, ``fraction`` (of the workers), ``rounds``, ``share``
            (of the cell's rounds).

    Raises:
        SpecError: The Byzantine workers of a cell's runs are chosen in different ways.
    """
    for name in (name for name in IDENTITIES if name not in by):
        for _, runs in results.runs.groupby(list(by), sort=False, dropna=False):
            if runs[name].nunique() > 1:
                a, b = (format_value(value) for value in runs[name].unique()[:2])
                raise SpecError(
                    f"{name}={a}: its rounds would be counted together with {name}={b}. Try: "
                    f"--facet {name}"
                )
    columns = list(dict.fromkeys([*by, "workers"]))
    # the column of runs is the declared number
    count = "count" if "byzantine" in by else "byzantine"
    named = results.histograms.rename(columns={"byzantine": count}).merge(
        results.runs[["id", *columns]], left_on="run_id", right_on="id"
    )
    bars = named.groupby([*columns, count], sort=False, dropna=False)["rounds"].sum().reset_index()
    bars = bars.sort_values([*by, count], kind="stable", ignore_index=True)
    share = (
        bars["rounds"] / bars.groupby(list(by), dropna=False)["rounds"].transform("sum")
        if by
        else bars["rounds"]
    )
    with_fraction = bars.assign(fraction=bars[count] / bars["workers"], share=share)
    return with_fraction if "workers" in by else with_fraction.drop(columns="workers")
