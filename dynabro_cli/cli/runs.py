"""``dynabro runs``, ``query`` and ``export``: reading the database."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dynabro_cli.cli.output import Csv, Database, Json, Where, emit, save_csv
from dynabro_cli.errors import SpecError, did_you_mean


def runs(where: Where = None, db: Database = "results.db", as_json: Json = False, as_csv: Csv = False) -> None:
    """List the stored runs.

    Example: dynabro runs --where "attack='sf' AND status='finished'"
    """
    from dynabro_cli.store.engine import open_read_only
    from dynabro_cli.store.queries import list_runs

    table = list_runs(open_read_only(db), where)
    emit(table.columns, table.rows, as_json=as_json, as_csv=as_csv)


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One statement that reads.")],
    db: Database = "results.db",
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Read the database with SQL; nothing can be written.

    Example: dynabro query "SELECT method, switching, mean, std, n FROM final_accuracy"
    """
    from dynabro_cli.store import queries
    from dynabro_cli.store.engine import open_read_only

    table = queries.query(open_read_only(db), sql)
    emit(table.columns, table.rows, as_json=as_json, as_csv=as_csv)


def export(
    what: Annotated[str, typer.Argument(metavar="curves|final|rounds", help="Evaluations, cells, or rounds.")],
    csv: Annotated[Path, typer.Option("--csv", metavar="FILE", help="File to write; - for standard output.")],
    where: Where = None,
    db: Database = "results.db",
) -> None:
    """Write curves (evaluations), final (mean and std of each cell) or rounds to a CSV file.

    Example: dynabro export curves --csv curves.csv --where "task='mnist'"
    """
    from dynabro_cli.store import queries
    from dynabro_cli.store.engine import open_read_only

    if what not in queries.EXPORTS:
        hint = did_you_mean(what, queries.EXPORTS)
        raise SpecError(f"cannot export {what!r}{hint}; legal: {', '.join(queries.EXPORTS)}")
    table = queries.export(open_read_only(db), what, where)
    count = save_csv(csv, table.columns, table.rows)
    print(f"{count} rows of {what} written to {csv}", file=sys.stderr)
