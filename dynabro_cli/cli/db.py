"""``dynabro db``: care of the database."""

from __future__ import annotations

import typer

from dynabro_cli.cli.output import Database

app = typer.Typer(help="Care of the results database.", no_args_is_help=True)


@app.callback()
def care() -> None:
    """Care of the results database."""


@app.command()
def upgrade(db: Database = "results.db") -> None:
    """Bring a database of an older dynabro to this one's schema, after a backup beside it.

    Example: dynabro db upgrade --db results.db
    """
    from dynabro_cli.store.engine import upgrade_file

    print(upgrade_file(db))
