"""``dynabro runs``, ``query`` and ``export``: read the database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynabro_cli.cli.output import Csv, Database, Force, Json, Where, emit, save_csv, tell_of_code
from dynabro_cli.cli.terminal import note
from dynabro_cli.errors import SpecError, did_you_mean

MOST_SECONDS = 1_000_000
"""Largest time limit."""


def runs(where: Where = None, db: Database = "results.db", as_json: Json = False, as_csv: Csv = False) -> None:
    """List the stored runs.

    Example: dynabro runs --where "attack='sf' AND status='finished'"
    """
    from dynabro_cli.store.engine import open_read_only
    from dynabro_cli.store.queries import list_code, list_runs

    engine = open_read_only(db)
    table = list_runs(engine, where)
    emit(table.columns, table.rows, as_json=as_json, as_csv=as_csv)
    tell_of_code(list_code(engine, where))


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One statement that reads.")],
    db: Database = "results.db",
    as_json: Json = False,
    as_csv: Csv = False,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Time limit in seconds, with exit code 124. [default: no limit]"),
    ] = None,
) -> None:
    """Read the database with SQL; nothing can be written.

    Example: dynabro query "SELECT method, switching, mean, std, n FROM final_accuracy"
    """
    from dynabro_cli.store import queries
    from dynabro_cli.store.engine import open_read_only

    if timeout is not None and not 0 < timeout <= MOST_SECONDS:
        raise SpecError(f"timeout={timeout:g}: it must be more than 0, and at most {MOST_SECONDS}. Try: --timeout 10")
    table = queries.query(open_read_only(db, any_row=True), sql, timeout=timeout)
    emit(table.columns, table.rows, as_json=as_json, as_csv=as_csv)


def export(
    what: Annotated[str, typer.Argument(metavar="curves|final|rounds", help="Evaluations, cells, or rounds.")],
    csv: Annotated[Path, typer.Option("--csv", metavar="FILE", help="File to write; - for standard output.")],
    where: Where = None,
    db: Database = "results.db",
    force: Force = False,
) -> None:
    """Write curves (evaluations), final (mean and std of each cell) or rounds to a CSV file.

    Example: dynabro export curves --csv curves.csv --where "task='mnist'"
    """
    from dynabro_cli.store import queries
    from dynabro_cli.store.engine import open_read_only
    from dynabro_cli.store.outputs import CSV, Output

    if what not in queries.EXPORTS:
        hint = did_you_mean(what, queries.EXPORTS)
        raise SpecError(f"cannot export {what!r}{hint}; legal: {', '.join(queries.EXPORTS)}")
    table = queries.export(open_read_only(db), what, where)
    count = save_csv(Output(csv, CSV, db, force), table.columns, table.rows)
    note(f"{count} rows of {what} written to {csv}")
