"""``dynabro compare``: paired differences of two methods, or of two values of any field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.completion import complete, components
from dynabro_cli.cli.options import Database, Json, Plugins, Sweeps, TableColumns, Where, Width
from dynabro_cli.core.errors import NotFoundError, SpecError
from dynabro_cli.runs.screen.output import emit, print_json, tell_of_code
from dynabro_cli.runs.screen.terminal import note, say

if TYPE_CHECKING:
    from dynabro_cli.answers.analysis.paired_tests import Interval
    from dynabro_cli.answers.analysis.pairs import Cell, Comparison

FORMATS = ("table", "json", "csv", "tex")


SIDES = complete(components("methods", "aggregators", "pre_aggregators"))


def compare(
    a: Annotated[
        str | None,
        typer.Argument(
            metavar="A",
            help="A method or rule, or FIELD=VALUE; several are separated by spaces.",
            autocompletion=SIDES,
        ),
    ] = None,
    b: Annotated[
        str | None,
        typer.Argument(metavar="B", help="The same, for the other side.", autocompletion=SIDES),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--all",
            metavar="FIELD",
            help="Compare all values of a field: method, rule, sweep, method.beta, ...",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="With --all: the columns. [default: attack, switching and the like]",
        ),
    ] = None,
    sweeps: Sweeps = None,
    where: Where = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Final number: accuracy, loss or gap; more with --all."),
    ] = None,
    db: Database = "results.db",
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="table|json|csv|tex", help="Form of the output. [default: table]"
        ),
    ] = None,
    width: Width = None,
    columns: TableColumns = None,
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Compare two methods, or two values of any field, by the differences of paired runs.

    Two runs are a pair if they have the same seed and agree in every field that neither A nor B
    names. They then have the same data, initial model and Byzantine workers, unless the compared
    field is one that determines these. Fields without effect on a run, such as attack_entry without
    momentum, need not agree; if an attack entered at two places, name one with --where.

    There is one row for each cell, that is, for pairs that differ in their seed only: the mean of A
    - B with 95% intervals (Student's t, and a percentile bootstrap of 10,000 resamples with seed
    0), the p-values of the paired t-test and of Wilcoxon's signed-rank test, and both with Holm's
    correction for the number of rows. 'better' is the side that is ahead if Holm's p of the t-test
    is at most 0.05.

    A side may set several fields: "dynabro learning_rate=0.05". If methods have only runs at
    different learning rates, each is compared at its own rate, and a line says so.

    --all FIELD prints the matrix of 'dynabro plot matrix', and every pair of values: how often
    paired t-tests separate them, with Holm's correction over all pairs and columns.

    Example: dynabro compare sgd momentum:beta=0.5 --where "task = 'digits'"
    """
    from dynabro_cli.answers.analysis import pairs
    from dynabro_cli.components.registries import REGISTRIES
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.queries import sweeps_condition

    if (every is None) != (a is not None and b is not None) or (
        every is not None and a is not None
    ):
        raise SpecError(
            "two sides are compared, or all values of a field. Try: dynabro compare A B, or "
            "--all FIELD"
        )
    if as_json and form not in (None, "json"):
        raise SpecError(f"format={form}: --json is another form. Try: one of them")
    form = "json" if as_json else form or "table"
    if form not in FORMATS:
        raise SpecError(f"format={form}: not a form of output. Try: {', '.join(FORMATS)}")
    if (width and form != "tex") or (columns and form not in ("table", "tex")):
        raise SpecError(f"format={form}: --width is for tex, and --columns for table and tex")
    if every is not None:
        _print_all(db, every, against, sweeps or (), where, metric, form, width, columns)
        return
    if against is not None:
        raise SpecError(
            f"against={against}: it is for --all. Try: dynabro compare --all method --against "
            f"{against}"
        )
    engine = open_read_only(db)
    stored, condition = pairs.stored_components(engine), sweeps_condition(engine, where, sweeps)
    side_a, side_b = (pairs.side(text or "", REGISTRIES, stored) for text in (a, b))
    metric = metric or pairs.usual_metric(engine, condition)
    comparison = pairs.compare(engine, side_a, side_b, where=condition, metric=metric)
    _print(comparison, form, width, columns)
    # on standard error
    for line in (f"A: {a}, B: {b}, final {metric}", *comparison.notes):
        note(line)


def _print_all(
    db: str,
    every: str,
    against: str | None,
    sweeps: Sequence[str],
    where: str | None,
    metric: str | None,
    form: str,
    width: str | None,
    columns: str | None,
) -> None:
    """Print the matrix of all values of a field, and every pair of them."""
    from dynabro_cli.answers.analysis.columns import chosen_columns, split_columns
    from dynabro_cli.answers.analysis.ranking import as_texts, ranking
    from dynabro_cli.cli.studio import studio
    from dynabro_cli.experiment.comparison import CodeComparison, versions

    split_columns("all", every)
    results = studio(db, where, Path(), "png", sweeps=sweeps).results
    ranked = ranking(results, metric, rows=every, columns=against)
    if len(ranked.rows) < 2:
        raise NotFoundError(
            f"all={every}: the runs have one value of it, {ranked.rows[0]}. Try: another field, "
            "or --where"
        )
    tell_of_code(CodeComparison(versions=versions(results.runs["code_digests"])))
    if form == "json":
        print_json(
            {
                "cells": ranked.cells.to_dict("records"),
                "pairs": [pair._asdict() for pair in ranked.pairs],
            }
        )
        return
    if form == "csv":
        emit(list(ranked.cells), ranked.cells.itertuples(index=False, name=None), as_csv=True)
        return
    from dynabro_cli.answers.analysis.ranking import BEST, TIED
    from dynabro_cli.answers.figures._latex import latex_table

    if form == "tex":
        table, bold = chosen_columns(*as_texts(ranked), columns)
        say(*latex_table(table, "\n".join(ranked.notes), bold, width).splitlines())
        return
    table = chosen_columns(*as_texts(ranked, marks=(BEST, TIED)), columns)[0].replace(
        " \N{PLUS-MINUS SIGN} ", "\N{PLUS-MINUS SIGN}", regex=True
    )
    keys = sum(name in ("matrix", "") for name in table)
    emit(list(table), table.values.tolist(), keys=keys)
    say("", "Pairs: mean of A - B, and columns in which a paired test separates them", "")
    emit(
        ("A", "B", "A - B", "A better", "B better", "open"),
        [(a, b, f"{mean:+.3f}", *counts) for a, b, mean, *counts in ranked.summaries],
    )
    for line in filter(None, (ranked.sentence, f"{BEST}: best of a column", *ranked.notes)):
        note(line)


def _print(comparison: Comparison, form: str, width: str | None, chosen: str | None) -> None:
    if form == "json":
        print_json([_row(cell) for cell in comparison.cells])
    elif form == "csv":
        rows = [_flat(_row(cell)) for cell in comparison.cells]
        emit(list(rows[0]), [list(row.values()) for row in rows], as_csv=True)
    else:
        import pandas as pd

        from dynabro_cli.answers.analysis.columns import chosen_columns

        columns, rows_of_texts = _texts(comparison)
        table, _ = chosen_columns(pd.DataFrame(rows_of_texts, columns=columns), (), chosen)
        if form == "table":
            emit(list(table), table.values.tolist())
        else:
            # it loads matplotlib
            from dynabro_cli.answers.figures._latex import latex_table

            say(*latex_table(table, width=width).splitlines())


def _row(cell: Cell) -> dict[str, Any]:
    """Return a cell as an object of the JSON output; NaN is None."""
    test = cell.test
    values = {
        "cell": cell.labels,
        "seeds": list(cell.seeds),
        "n": test.n,
        "mean_a": cell.a,
        "mean_b": cell.b,
        "difference": test.mean,
        "t_low": test.student.low,
        "t_high": test.student.high,
        "bootstrap_low": test.bootstrap.low,
        "bootstrap_high": test.bootstrap.high,
        "p_t": test.p_t,
        "p_wilcoxon": test.p_wilcoxon,
        "holm_t": cell.holm_t,
        "holm_wilcoxon": cell.holm_wilcoxon,
        "better": cell.better,
        "diverged_a": cell.diverged[0],
        "diverged_b": cell.diverged[1],
    }
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with a column for each label."""
    rest = {name: value for name, value in row.items() if name != "cell"}
    labels: dict[str, Any] = row["cell"]
    return labels | rest | {"seeds": " ".join(map(str, row["seeds"]))}


def _texts(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows for people."""
    from dynabro_cli.answers.analysis.diverged import share

    columns = [*comparison.cells[0].labels, "n", "A", "B", "A - B", "95% t", "95% bootstrap"]
    columns += ["p t", "p Wilcoxon", "Holm t", "Holm Wilcoxon", "better"]
    rows = []
    for cell in comparison.cells:
        test = cell.test
        numbers = [test.p_t, test.p_wilcoxon, cell.holm_t, cell.holm_wilcoxon]
        rows.append(
            [
                *map(str, cell.labels.values()),
                str(test.n),
                *(
                    f"{mean:.4g}{f' ({words})' if (words := share(lost, test.n)) else ''}"
                    for mean, lost in zip((cell.a, cell.b), cell.diverged, strict=True)
                ),
                f"{test.mean:+.4f}",
                *(_interval(test.student), _interval(test.bootstrap)),
                *("-" if math.isnan(number) else f"{number:.2g}" for number in numbers),
                cell.better or "-",
            ]
        )
    return columns, rows


def _interval(ends: Interval) -> str:
    return "-" if math.isnan(ends.low) else f"{ends.low:+.4f} to {ends.high:+.4f}"
