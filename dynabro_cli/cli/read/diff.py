"""``dynabro diff``: in what two stored runs differ."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.completion import complete, run_ids
from dynabro_cli.cli.options import Database, Json, Plugins
from dynabro_cli.core.registration import digests
from dynabro_cli.runs.screen.output import emit
from dynabro_cli.runs.screen.terminal import note, say

if TYPE_CHECKING:
    from sqlalchemy import Engine

Differing = tuple[str, str, Any, Any]
"""Part, name, and the values of A and B; None is a value that is not stored."""
PARTS = {
    "versions": ("versions",),
    "machine": ("device", "host"),
    "code": ("code_digests", "git_commit", "git_diff"),
    "data": ("data_digest",),
    "scores": (
        "status",
        "final_accuracy",
        "final_loss",
        "final_gap",
        "budget_spent",
        "rounds",
        "switches",
        "error",
    ),
}
"""Columns of ``runs`` that tell why runs differ, or how far."""
LATER = ("cpu", "cpu_capability")
"""Names of values that older runs do not have; a missing value is unknown, not another one."""
CURVES = (
    (
        "SELECT budget, 'test_accuracy' AS name, test_accuracy AS value FROM evaluations WHERE "
        "run_id = {run}"
    ),
    "SELECT budget, 'test_loss', test_loss FROM evaluations WHERE run_id = {run}",
    "SELECT budget, 'gap', gap FROM evaluations WHERE run_id = {run}",
    (
        "SELECT budget, metrics.name, value FROM metrics JOIN evaluations USING (run_id, round) "
        "WHERE run_id = {run}"
    ),
    "SELECT budget, 'gradient_norm', gradient_norm FROM rounds WHERE run_id = {run}",
)


def diff(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A run's id, or the beginning of its key.",
            autocompletion=complete(run_ids),
        ),
    ],
    b: Annotated[
        str,
        typer.Argument(metavar="B", help="The other run.", autocompletion=complete(run_ids)),
    ],
    db: Database = "results.db",
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Show in what two stored runs differ: fields, versions, machine, code, data, scores and
    curves.

    Equal values are not shown. Curves are compared where both runs have a value at the same budget:
    at the first difference, and at the largest one. A difference in the first rounds comes from
    what the runs computed with; a later one may be the growth of a rounding error.

    Example: dynabro diff 1 2
    """
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.queries import find_run

    engine = open_read_only(db)
    rows = find_run(engine, a), find_run(engine, b)
    differences = [*_of_columns(*rows), *_of_curves(engine, *(row["id"] for row in rows))]
    if as_json:
        emit(("part", "name", "a", "b"), differences, as_json=True)
    elif differences:
        columns = ("part", "name", f"run {rows[0]['id']}", f"run {rows[1]['id']}")
        emit(columns, [(part, name, *_apart(*values)) for part, name, *values in differences])
    else:
        say("no difference in any part")
    equal = [
        part for part in ("fields", *PARTS, "curves") if part not in {row[0] for row in differences}
    ]
    if "data" in equal and not any(row.get("data_digest") for row in rows):
        equal.remove("data")
        note("data: not stored for these runs")
    if not all("cpu_capability" in str(row.get("versions")) for row in rows):
        note("cpu_capability: not stored for both runs; the vector instructions may differ")
    if differences and equal:
        note(f"equal: {', '.join(equal)}")


def _of_columns(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Differing]:
    """Yield the differing fields, and the differing values of ``PARTS``."""
    for part, columns in {"fields": ("spec",), **PARTS}.items():
        ours, theirs = (
            dict(pair for name in columns for pair in _leaves(name, row.get(name)))
            for row in (a, b)
        )
        for name in dict.fromkeys([*ours, *theirs]):
            values = ours.get(name), theirs.get(name)
            if values[0] != values[1] and not (name in LATER and None in values):
                yield part, name, *values


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a column's values by name: of JSON each part, such as ``method.beta``, and otherwise
    the value.
    """
    if name == "code_digests" and (code := digests.parse(value)):
        yield from digests.today(code).items()
    elif name in ("spec", "versions") and isinstance(value, str):
        try:
            yield from _parts("", json.loads(value))
        except (ValueError, RecursionError):
            yield name, value
    else:
        yield name, value


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value, 1):
            yield from _parts(f"{name}.{key}".removeprefix("."), part)
    else:
        yield name.removesuffix(".name"), value


def _of_curves(engine: Engine, a: int, b: int) -> Iterator[Differing]:
    """Yield for each curve its number of values, if that differs, and its first and its largest
    difference.
    """
    from dynabro_cli.runs.store.read.queries import query

    for sql in CURVES:
        ours, theirs = (
            {
                (name, budget): value
                for budget, name, value in query(engine, sql.format(run=run)).rows
            }
            for run in (a, b)
        )
        for name in dict.fromkeys(name for name, _ in [*ours, *theirs]):
            budgets = [{budget for of, budget in curve if of == name} for curve in (ours, theirs)]
            if budgets[0] != budgets[1]:
                yield "curves", f"{name}: values", len(budgets[0]), len(budgets[1])
            pairs = [
                (budget, ours[name, budget], theirs[name, budget])
                for budget in sorted(budgets[0] & budgets[1])
            ]
            pairs = [pair for pair in pairs if pair[1] != pair[2]]
            if pairs:
                largest = max(pairs, key=lambda pair: _distance(*pair[1:]))
                for word, (budget, *values) in (
                    ("first", pairs[0]),
                    *([("largest", largest)] if largest != pairs[0] else []),
                ):
                    yield "curves", f"{name}: {word} at budget {budget}", *values


def _distance(a: Any, b: Any) -> float:
    return abs(a - b) if isinstance(a, float) and isinstance(b, float) else math.inf


def _apart(a: Any, b: Any) -> tuple[Any, Any]:
    """Return two numbers in full if a table would round them to the same text."""
    close = isinstance(a, float) and isinstance(b, float) and f"{a:.4g}" == f"{b:.4g}"
    return (repr(a), repr(b)) if close else (a, b)
