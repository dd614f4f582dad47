"""``dynabro compare``: paired differences of two methods, or of two values of any field."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.options import Database, Json, Plugins, Where
from dynabro_cli.cli.output import emit, print_json
from dynabro_cli.cli.terminal import note, say
from dynabro_cli.errors import SpecError

if TYPE_CHECKING:
    from dynabro_cli.store.pairs import Cell, Comparison
    from dynabro_cli.store.statistics import Interval

FORMATS = ("table", "json", "csv", "tex")


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A method, or FIELD=VALUE; several are separated by spaces.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same, for the other side.")],
    where: Where = None,
    metric: Annotated[str, typer.Option(metavar="accuracy|loss|gap", help="Final number to compare.")] = "accuracy",
    db: Database = "results.db",
    form: Annotated[
        str | None, typer.Option("--format", metavar="table|json|csv|tex", help="Form of the output. [default: table]")
    ] = None,
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Compare two methods, or two values of any field, by the differences of paired runs.

    Two runs are a pair if they have the same seed and agree in every field that neither A nor B names. They then have the same
    data, initial model and Byzantine workers, unless the compared field is one that determines these. There is one row for
    each cell, that is, for pairs that differ in their seed only: the mean of A - B with 95% intervals (Student's t, and a
    percentile bootstrap of 10,000 resamples with seed 0), the p-values of the paired t-test and of Wilcoxon's signed-rank test,
    and both with Holm's correction for the number of rows. 'better' is the side that is ahead if Holm's p of the t-test is at
    most 0.05.

    A side may set several fields: "dynabro learning_rate=0.05".

    Example: dynabro compare sgd momentum:beta=0.5 --where "task = 'digits'"
    """
    from dynabro_cli.experiment.resolve import REGISTRIES
    from dynabro_cli.store import pairs
    from dynabro_cli.store.engine import open_read_only

    if as_json and form not in (None, "json"):
        raise SpecError(f"format={form}: --json is another form. Try: one of them")
    form = "json" if as_json else form or "table"
    if form not in FORMATS:
        raise SpecError(f"format={form}: not a form of output. Try: {', '.join(FORMATS)}")
    sides = pairs.side(a, REGISTRIES), pairs.side(b, REGISTRIES)
    found = pairs.compare(open_read_only(db), *sides, where=where, metric=metric)
    _print(found, form)
    for line in found.notes:  # on standard error
        note(line)


def _print(found: Comparison, form: str) -> None:
    if form == "json":
        print_json([_row(cell) for cell in found.cells])
    elif form == "csv":
        rows = [_flat(_row(cell)) for cell in found.cells]
        emit(list(rows[0]), [list(row.values()) for row in rows], as_csv=True)
    else:
        columns, rows_of_texts = _texts(found)
        if form == "table":
            emit(columns, rows_of_texts)
        else:
            from dynabro_cli.figures._latex import latex_table

            say(*latex_table(columns, rows_of_texts).splitlines())


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
    }
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with a column for each label."""
    rest = {name: value for name, value in row.items() if name != "cell"}
    labels: dict[str, Any] = row["cell"]
    return labels | rest | {"seeds": " ".join(map(str, row["seeds"]))}


def _texts(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows for people."""
    columns = [*found.cells[0].labels, "n", "A", "B", "A - B", "95% t", "95% bootstrap"]
    columns += ["p t", "p Wilcoxon", "Holm t", "Holm Wilcoxon", "better"]
    rows = []
    for cell in found.cells:
        test = cell.test
        numbers = [test.p_t, test.p_wilcoxon, cell.holm_t, cell.holm_wilcoxon]
        rows.append(
            [
                *map(str, cell.labels.values()),
                *(str(test.n), f"{cell.a:.4g}", f"{cell.b:.4g}", f"{test.mean:+.4f}"),
                *(_interval(test.student), _interval(test.bootstrap)),
                *("-" if math.isnan(number) else f"{number:.2g}" for number in numbers),
                cell.better or "-",
            ]
        )
    return columns, rows


def _interval(ends: Interval) -> str:
    return "-" if math.isnan(ends.low) else f"{ends.low:+.4f} to {ends.high:+.4f}"
