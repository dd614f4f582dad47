"""Compare the tables and views of a database with dynabro's, and find triggers.

A trigger may delete what dynabro stores, and a view of another definition shows numbers that nobody
measured. Users may add tables, columns, views and indexes under other names.
"""

from __future__ import annotations

from sqlalchemy import Connection, inspect

from dynabro_cli.errors import DatabaseError
from dynabro_cli.store.open.translation import shown
from dynabro_cli.store.tables import metadata
from dynabro_cli.store.views import OLDER, VIEWS

VERSION_TABLE = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT "
    "alembic_version_pkc PRIMARY KEY (version_num))"
)
"""The table of the schema's version, as Alembic has it, so that a later version can be a
migration.
"""
COLUMNS = (
    "SELECT tables.name, GROUP_CONCAT(columns.name) FROM sqlite_master AS tables "
    "JOIN pragma_table_info(tables.name) AS columns WHERE tables.type = 'table' "
    "GROUP BY tables.name"
)
TRIGGERS = {
    "sqlite": "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": (
        "SELECT tgname, relname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
        "WHERE NOT tgisinternal"
    ),
}
"""SQL for the triggers of a database and their tables."""


def refuse_other_tables(connection: Connection, database: str) -> None:
    """Raise DatabaseError if a database lacks a table of dynabro's, or a column of one."""
    columns = _columns(connection)
    for table in metadata.tables.values():
        present = columns.get(table.name, set())
        lacking = [name for name in table.c.keys() if name not in present]  # noqa: SIM118
        if lacking:
            what = f"column {lacking[0]} in its table {table.name}"
            raise DatabaseError(
                f"{shown(database)} has no {what if present else f'table {table.name}'}. Try: "
                "restore a backup, or name another with --db"
            )


def _columns(connection: Connection) -> dict[str, set[str]]:
    """Return the names of the columns of each table."""
    if connection.dialect.name != "sqlite":
        tables = inspect(connection).get_multi_columns().items()
        return {str(name): {column["name"] for column in columns} for (_, name), columns in tables}
    # for SQLite, the Inspector asks table by table, and takes ten times as long
    return {name: set(columns.split(",")) for name, columns in connection.exec_driver_sql(COLUMNS)}


def foreign_objects(connection: Connection, *, triggers: bool = True) -> list[str]:
    """Return the problems of dynabro's views, and the triggers on its tables, one per line.

    Args:
        connection: A connection to a database with dynabro's tables.
        triggers: False for a reader, which triggers do not affect.
    """
    inspector = inspect(connection)
    names = inspector.get_view_names()
    problems = [f"view {name} is missing" for name in VIEWS if name not in names]
    if connection.dialect.name == "sqlite":  # a server stores its own wording of a definition
        for name in {*VIEWS}.intersection(names):
            written = _spaced(inspector.get_view_definition(name) or "")
            if written not in (_spaced(VIEWS[name]), _spaced(OLDER.get(name, ""))):
                problems.append(f"view {name} has another definition than dynabro's")
    listing = TRIGGERS.get(connection.dialect.name)
    if triggers and listing is not None:
        problems += [
            f"trigger {name!r} on {table} acts whenever something is stored"
            for name, table in connection.exec_driver_sql(listing)
            if table in metadata.tables
        ]
    return problems


def refuse_foreign_objects(connection: Connection, database: str, *, writing: bool) -> None:
    """Raise DatabaseError if a database has another view than dynabro's, or a trigger and is to be
    written.
    """
    problems = foreign_objects(connection, triggers=writing)
    if problems:
        name = shown(database)
        raise DatabaseError(
            f"{name}: {'; '.join(problems)}. Try: dynabro db merge {name} --db NEW.db, which "
            "copies the runs alone into a new database"
        )


def _spaced(statement: str) -> str:
    return " ".join(statement.split())
