"""Compare defences under each adversary: means, intervals, ranks, and paired tests of every
pair.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dynabro_cli.answers.analysis.cells import clipped, seed_means, worst_of
from dynabro_cli.answers.analysis.columns import (
    RULE,
    TUNING,
    differences_note,
    having,
    metric_of,
    name_of,
    split_columns,
    whole_rule,
    with_columns,
)
from dynabro_cli.answers.analysis.diverged import DIVERGED, mark_note
from dynabro_cli.answers.analysis.diverged import mark as lost_mark
from dynabro_cli.answers.analysis.layout import Layout, label_order, labelled, layout_of
from dynabro_cli.answers.analysis.paired_tests import (
    LEVEL,
    differences,
    half_width,
    holm,
    paired_t,
    student,
)
from dynabro_cli.answers.analysis.results import Results, check_means
from dynabro_cli.core.errors import SpecError, many
from dynabro_cli.experiment.spec import CHAIN

MOST_PANELS = 12
"""Most matrices that can be read."""
SPREAD = "mean \N{PLUS-MINUS SIGN} half of the 95% interval"
BEST, TIED = "*", "\N{ALMOST EQUAL TO}"
"""Marks of the best cell of a column in plain text, and of cells that no paired test separates from
it.
"""


class Pair(NamedTuple):
    """Two rows in one column: the mean difference A - B over ``n`` common seeds with Student's
    interval, and the p-value of the paired t-test.

    ``holm`` is p with Holm's correction over all pairs of all columns and matrices; NaN without a
    test.
    """

    panel: str
    column: str
    a: str
    b: str
    n: int
    difference: float
    low: float
    high: float
    p: float
    holm: float


class Ranking(NamedTuple):
    """A comparison of several things.

    Attributes:
        layout: The fields.
        rows: Labels of the compared things, in order.
        columns: Labels of the adversaries.
        panels: Titles of the matrices; one empty title if there is one matrix.
        cells: One row per cell: ``panel``, ``row``, ``column``, ``mean``, ``half`` (of the
            interval), ``std``, ``low``, ``high``, ``n``, ``diverged``, ``best``, ``tied``, and of
            its row ``worst``, ``worst_column`` and ``mean_rank``.
        pairs: Every pair of rows in every column.
        higher: True if more is better.
        notes: Lines that a reader of the numbers must know.
    """

    layout: Layout
    rows: list[str]
    columns: list[str]
    panels: list[str]
    cells: pd.DataFrame
    pairs: list[Pair]
    higher: bool
    notes: list[str]

    def panel(self, title: str) -> pd.DataFrame:
        """Return the cells of a matrix."""
        return self.cells[self.cells["panel"] == title]

    @property
    def summaries(self) -> list[tuple[str, str, float, int, int, int]]:
        """Return, for each pair of rows, the mean difference, and the number of columns in which A
        is better, B is better, and no test separates them.
        """
        groups: dict[tuple[str, str], list[Pair]] = {}
        for pair in self.pairs:
            groups.setdefault((pair.a, pair.b), []).append(pair)
        rows = []
        for (a, b), pairs in groups.items():
            apart = [pair for pair in pairs if pair.holm <= LEVEL]
            of_a = sum((pair.difference > 0) == self.higher for pair in apart)
            mean = sum(pair.difference for pair in pairs) / len(pairs)
            rows.append((a, b, mean, of_a, len(apart) - of_a, len(pairs) - len(apart)))
        return rows

    @property
    def sentence(self) -> str:
        """The answer in a sentence or two, for the first matrix."""
        first = self.panel(self.panels[0])
        where = f"{self.panels[0]}: " if self.panels[0] else ""
        missing = _missing(first)
        rows = first.drop_duplicates("row")
        rows = rows[~rows["row"].isin(list(missing))].dropna(subset="worst")
        if len(rows) < 2 and not missing:
            return ""
        lacks = "; ".join(f"{row} has no run under {columns}" for row, columns in missing.items())
        if len(rows) < 2:
            return f"{where}no best worst case: {lacks}."
        if missing:
            where += f"of {len(rows)} of {len(rows) + len(missing)} rows ({lacks}), "
        orders = [not self.higher, True]
        ordered = rows.sort_values(["worst", "mean_rank"], ascending=orders, kind="stable")
        best, second = ordered.iloc[0], ordered.iloc[1]
        leads = first[(first["row"] == best["row"]) & (first["best"] | first["tied"])]
        count, column = first["column"].nunique(), second["worst_column"]
        p = next(
            (
                pair.holm
                for pair in self.pairs
                if (pair.panel, pair.column) == (self.panels[0], column)
                and {pair.a, pair.b} == {best["row"], second["row"]}
            ),
            math.nan,
        )
        test = (
            "no paired test"
            if math.isnan(p)
            else f"paired t-test under {column}: p = {p:.2g} after Holm over {self.tests}"
        )
        a, b = (
            f"{row['worst']:.3g}" + (f" under {row['worst_column']}" if count > 1 else "")
            for row in (best, second)
        )
        under = first["column"] == best["worst_column"]
        cell = first[under & (first["row"] == best["row"])].iloc[0]
        if count > 1 and cell["diverged"] == cell["n"]:
            spread = (
                f"no row withstands every column: in the best worst case, {best['row']} with {a}, "
                "all runs diverge."
            )
        elif p <= LEVEL:
            what = "has the best worst case," if count > 1 else "is best, with"
            spread = f"{best['row']} {what} {a}; {second['row']} follows with {b} ({test})."
        else:
            what = "the best worst cases" if count > 1 else "the best two"
            spread = (
                f"no test separates {what}: {best['row']} with {a}, and {second['row']} with {b} "
                f"({test})."
            )
        if count == 1:
            return f"{where}{spread}"
        return (
            f"{where}{spread} {best['row']} is best, or tied with the best, in {len(leads)} of "
            f"{count} columns."
        )

    @property
    def tests(self) -> str:
        """The number of tests that Holm's correction counts."""
        return many(sum(not math.isnan(pair.p) for pair in self.pairs), "test")


def _missing(cells: pd.DataFrame) -> dict[str, str]:
    """Return the columns without a run of each row of a matrix that has any: rows with other
    columns have no common worst case.
    """
    present = cells.groupby("row", sort=False)["column"].agg(set)
    columns = list(dict.fromkeys(cells["column"]))
    without = {row: [name for name in columns if name not in present[row]] for row in present.index}
    return {str(row): " or ".join(names) for row, names in without.items() if names}


def ranking(
    results: Results,
    metric: str | None,
    *,
    rows: str | None = None,
    columns: str | None = None,
    panels: str | None = None,
    most: float = math.inf,
) -> Ranking:
    """Compare runs by a metric: ``rows``, ``columns`` and ``panels`` name fields, separated by
    commas; see ``layout_of``. If the chains of runs differ and have no place of their own,
    ``aggregator`` is the rule. Raise SpecError for more than ``most`` cells.
    """
    chosen = metric_of(results, metric)
    results = having(results, chosen)
    fields = [
        split_columns(option, names)
        for option, names in (("hue", rows), ("x", columns), ("facet", panels))
    ]
    given = [*itertools.chain(*fields)]
    fields = [
        tuple(
            part
            for name in names
            for part in (
                (CHAIN, name) if whole_rule(name, results.runs, given) == RULE else (name,)
            )
        )
        for names in fields
    ]
    if (
        not fields[2]
        and results.sweeps
        and results.runs["sweep"].nunique() > 1
        and "sweep" not in (*fields[0], *fields[1])
    ):
        fields[2] = ("sweep",)
    runs = with_columns(results.runs, itertools.chain(*fields))
    layout = layout_of(runs, *fields)
    return rank(runs, layout, chosen.final, higher=chosen.higher, most=most)


def as_texts(
    ranked: Ranking, label: Callable[[str], str] = str, *, marks: tuple[str, str] = ("", f" {TIED}")
) -> tuple[pd.DataFrame, set[tuple[int, int]]]:
    """Return a ranking as a table of texts, and the places of the best cells, [row, column].

    Args:
        ranked: The ranking.
        label: ``label(name)`` returns the words for a row, column or panel.
        marks: Text after the best numbers, and after those tied with it.
    """
    lines: list[dict[str, str]] = []
    bold = set()
    for panel in ranked.panels:
        cells = {(cell.row, cell.column): cell for cell in ranked.panel(panel).itertuples()}
        for row in ranked.rows:
            first: Any = next((cell for (name, _), cell in cells.items() if name == row), None)
            if first is None:
                continue
            line = {"matrix": label(panel)} if panel else {}
            line[""] = label(row)
            for column in ranked.columns:
                cell: Any = cells.get((row, column))
                if cell is not None and cell.best:
                    bold.add((len(lines), len(line)))
                mark = (
                    "" if cell is None else marks[0] if cell.best else marks[1] if cell.tied else ""
                )
                shown = "-" if cell is None else number(cell, " ", mark="") + mark + lost_mark(cell)
                line[label(column)] = shown
            worst = f"{first.worst:.3f} ({label(first.worst_column)})"
            lines.append(line | {"worst": worst, "mean rank": f"{first.mean_rank:.2g}"})
    return pd.DataFrame(lines).fillna("-"), bold


def number(cell: Any, between: str | None, mark: str = TIED) -> str:
    """Return a cell's mean with half of its interval; ``between`` separates both, and None leaves
    the interval out.
    """
    shown = f"{cell.mean:.3f}" if abs(cell.mean) < 10 else f"{cell.mean:.4g}"
    if between is None:
        short = f"{cell.mean:.2f}" if abs(cell.mean) < 10 else f"{cell.mean:.2g}"
        return short.removeprefix("0") + (mark if cell.tied else "")
    spread = (
        ""
        if math.isnan(cell.half)
        else f"{between}\N{PLUS-MINUS SIGN}{between.strip(chr(10))}{cell.half:.3f}"
    )
    return shown + spread + (f" {mark}" if cell.tied and mark else "")


def rank(
    runs: pd.DataFrame, layout: Layout, value: str, *, higher: bool, most: float = math.inf
) -> Ranking:
    """Compare the values of some fields under the values of others.

    Args:
        runs: Runs with a result, as of ``Results.runs``.
        layout: The fields.
        value: The number to compare, a column of ``runs``.
        higher: True if more is better.
        most: Largest number of cells.

    Raises:
        SpecError: There is one thing only, there are too many matrices to read or too many cells,
            or runs of a cell differ in more than the seed.
    """
    labels = {
        part: labelled(runs, fields)
        for part, fields in zip(("row", "column", "panel"), layout, strict=True)
    }
    orders = {
        part: label_order(runs, fields, labels[part])
        for part, fields in zip(labels, layout, strict=True)
    }
    if len(orders["panel"]) > MOST_PANELS:
        raise SpecError(
            f"the runs differ in {', '.join(map(name_of, layout.panels))}: "
            f"{len(orders['panel'])} matrices, and "
            f"{MOST_PANELS} can be read. Try: --where with a condition on the runs"
        )
    named = runs.assign(**labels, diverged=runs["status"] == DIVERGED)
    keys = ["panel", "row", "column"]
    count = len(named[keys].drop_duplicates())
    if count > most:
        raise SpecError(f"the matrix has {count} cells, and {most} can be shown")
    check_means(named, keys)
    # a seed counts once, also if equal runs have several texts, or are in several sweeps
    seeds = named.groupby([*keys, "seed"], sort=False).agg(
        value=(value, lambda values: values.mean(skipna=False)),
        diverged=("diverged", "max"),
        id=("id", "min"),
    )
    groups = seeds["value"].groupby(level=keys, sort=False)
    lost = seeds["diverged"].groupby(level=keys, sort=False).sum()
    cells = seed_means(groups).assign(diverged=lost)
    order = itertools.product(orders["panel"], orders["row"], orders["column"])
    cells = cells.reindex([key for key in order if key in cells.index]).rename_axis(keys)
    half = half_width(cells["std"], cells["n"])
    low, high = cells["mean"] - half, cells["mean"] + half
    cells = cells.assign(half=(high - low) / 2).reset_index()
    cells["low"], cells["high"] = (ends.to_numpy() for ends in clipped(low, high, value))
    frame = cells[[*keys, "mean", "half", "std", "low", "high", "n", "diverged"]]
    scores, ids = (
        {key: part.droplevel(keys).to_dict() for key, part in parts}
        for parts in (groups, seeds["id"].groupby(level=keys, sort=False))
    )
    pairs = _pairs(scores, ids, orders)
    return Ranking(
        layout,
        orders["row"],
        orders["column"],
        orders["panel"],
        _judged(frame, pairs, higher=higher),
        pairs,
        higher,
        _notes(named, layout, frame, pairs, orders),
    )


def _pairs(
    scores: Mapping[Any, Mapping[int, float]],
    ids: Mapping[Any, Mapping[int, int]],
    orders: dict[str, list[str]],
) -> list[Pair]:
    """Return every pair of rows in every column; ``scores`` has the numbers of a cell by seed, and
    ``ids`` the runs.

    Methods without a memory are in the matrix of each reading, with the same runs: Holm's
    correction counts their test once.
    """
    pairs, tests = [], []
    for panel, column in itertools.product(orders["panel"], orders["column"]):
        for a, b in itertools.combinations(orders["row"], 2):
            sides = (scores.get((panel, row, column), {}) for row in (a, b))
            values = differences(*sides)
            if values:
                numbers = (float(np.mean(values)), *student(values), paired_t(values))
                pairs.append(Pair(panel, column, a, b, len(values), *numbers, math.nan))
                tests.append(tuple(frozenset(ids[panel, row, column].values()) for row in (a, b)))
    once = dict(zip(tests, (pair.p for pair in pairs), strict=True))
    adjusted = dict(zip(once, holm(list(once.values())), strict=True))
    return [pair._replace(holm=adjusted[test]) for pair, test in zip(pairs, tests, strict=True)]


def _judged(cells: pd.DataFrame, pairs: Sequence[Pair], *, higher: bool) -> pd.DataFrame:
    """Add ``best``, ``tied``, ``worst``, ``worst_column`` and ``mean_rank``; a missing mean is
    never best, and worst of all.
    """
    sign = 1 if higher else -1
    score = (sign * cells["mean"]).fillna(-np.inf)
    columns = [cells["panel"], cells["column"]]
    top = score.groupby(columns, sort=False).transform("max")
    first = ~pd.concat([*columns, score == top], axis=1).duplicated()
    best = (score == top) & np.isfinite(score) & first
    leaders = {(cell.panel, cell.column): cell.row for cell in cells[best].itertuples()}
    apart = {(pair.panel, pair.column, frozenset((pair.a, pair.b))): pair.holm for pair in pairs}

    def tied(cell: Any) -> bool:
        leader = leaders.get((cell.panel, cell.column))
        # without a test, as for one seed, p is NaN or missing: then nothing says that two are tied
        return (
            leader not in (None, cell.row)
            and apart.get((cell.panel, cell.column, frozenset((leader, cell.row))), 0.0) > LEVEL
        )

    ranks = (-score).groupby(columns, sort=False).rank(method="average")
    rows = [cells["panel"], cells["row"]]
    lowest = worst_of(cells, ("panel", "row"), higher=higher)
    return cells.assign(
        best=best,
        tied=[tied(cell) for cell in cells.itertuples()],
        worst=cells["mean"].loc[lowest].to_numpy(),
        worst_column=cells["column"].loc[lowest].to_numpy(),
        mean_rank=ranks.groupby(rows, sort=False).transform("mean"),
    )


def _notes(
    runs: pd.DataFrame,
    layout: Layout,
    cells: pd.DataFrame,
    pairs: Sequence[Pair],
    orders: dict[str, list[str]],
) -> list[str]:
    few, most = int(cells["n"].min()), int(cells["n"].max())
    tests = sum(not math.isnan(pair.p) for pair in pairs)
    seeds = many(most, "seed") if few == most else f"{few} to {most} seeds"
    notes = [f"{SPREAD} over {seeds}" if most > 1 else "one seed: no interval"]
    if tests:
        notes.append(
            f"{TIED}: not separated from the best by paired t-tests (Holm over "
            f"{many(tests, 'test')}, 5%)"
        )
    elif len(orders["row"]) > 1:
        notes.append("no test: a paired test needs several seeds")
    notes += differences_note(runs, [*itertools.chain(*layout)])
    tuned = [name_of(name) for name in itertools.chain(*layout) if name in TUNING]
    if tuned and (runs["validation"] > 0).any():
        notes.append(
            f"these are test results, which must not choose a {tuned[0]}. Try: dynabro select"
        )
    if cells["diverged"].any():
        notes.append(mark_note(runs.loc[runs["diverged"], "id"].nunique()))
    whole = math.prod(map(len, orders.values()))
    if len(cells) < whole:
        notes.append(f"{whole - len(cells)} of {whole} cells have no run")
    return notes
