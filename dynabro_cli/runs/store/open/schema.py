"""Compare the tables and views of a database with dynabro's, and find triggers.

A trigger may delete what dynabro stores, and a view of another definition shows numbers that nobody
measured. Users may add tables, columns, views and indexes under other names.
"""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Any, NamedTuple

from sqlalchemy import Connection, inspect

from dynabro_cli.core.errors import DatabaseError
from dynabro_cli.runs.store.open.translation import shown
from dynabro_cli.runs.store.tables import metadata
from dynabro_cli.runs.store.views import ADDED, OLDER, VIEWS

VERSION_TABLE = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT "
    "alembic_version_pkc PRIMARY KEY (version_num))"
)
"""The table of the schema's version, as Alembic has it, so that a later version can be a
migration.
"""
SQLITE_OBJECTS = """
    SELECT type, name, tbl_name, sql,
           CASE type WHEN 'table' THEN
               (SELECT GROUP_CONCAT(name) FROM pragma_table_info(entry.name)) END
    FROM sqlite_master AS entry WHERE type <> 'index'
"""
SERVER_TRIGGERS = {
    "postgresql": "SELECT tgname, relname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
    "WHERE NOT tgisinternal"
}


class Schema(NamedTuple):
    """Tables, views and triggers of a database.

    Attributes:
        tables: The names of the columns, by table.
        views: The definitions, by view; None on a server, which stores its own wording.
        triggers: The names of triggers and their tables.
    """

    tables: dict[str, set[str]]
    views: dict[str, str | None]
    triggers: list[tuple[str, str]]


def schema_of_file(connection: sqlite3.Connection) -> Schema:
    """Return the schema of an SQLite file.

    SQLAlchemy's Inspector asks table by table, and takes ten times as long.
    """
    schema = Schema({}, {}, [])
    for kind, name, table, statement, columns in connection.execute(SQLITE_OBJECTS):
        if kind == "table":
            schema.tables[name] = set(columns.split(","))
        elif kind == "view":
            schema.views[name] = statement
        else:
            schema.triggers.append((name, table))
    return schema


def schema_of(connection: Connection) -> Schema:
    """Return the schema of a database that is open."""
    if connection.dialect.name == "sqlite":
        raw: Any = connection.connection.dbapi_connection
        return schema_of_file(raw)
    inspector = inspect(connection)
    tables = inspector.get_multi_columns().items()
    listing = SERVER_TRIGGERS.get(connection.dialect.name, "SELECT '', '' WHERE 1 = 0")
    return Schema(
        {str(name): {column["name"] for column in columns} for (_, name), columns in tables},
        dict.fromkeys(inspector.get_view_names()),
        [(name, table) for name, table in connection.exec_driver_sql(listing)],
    )


def refuse_missing_tables(schema: Schema, database: str) -> None:
    """Raise DatabaseError if a database lacks a table of dynabro's, or a column of one."""
    for table in metadata.tables.values():
        present = schema.tables.get(table.name, set())
        lacking = [column.name for column in table.c if column.name not in present]
        if lacking:
            what = f"column {lacking[0]} in its table {table.name}"
            raise DatabaseError(
                f"{shown(database)} has no {what if present else f'table {table.name}'}. Try: "
                "restore a backup, or name another with --db"
            )


def view_and_trigger_problems(schema: Schema, *, triggers: bool = True) -> list[str]:
    """Return the problems of dynabro's views, and the triggers on its tables, one per line.

    Args:
        schema: The schema of a database with dynabro's tables.
        triggers: False for a reader, which triggers do not affect.
    """
    problems = []
    for name, definition in VIEWS.items():
        written = schema.views.get(name)
        if name not in schema.views:
            problems += [] if name in ADDED else [f"view {name} is missing"]
        elif (
            written is not None
            and _spaced(written) != _spaced(definition)
            and _digest(written) not in OLDER.get(name, ())
        ):
            problems.append(f"view {name} has another definition than dynabro's")
    return problems + [
        f"trigger {name!r} on {table} acts whenever something is stored"
        for name, table in schema.triggers
        if triggers and table in metadata.tables
    ]


def refuse_view_and_trigger_problems(schema: Schema, database: str, *, writing: bool) -> None:
    """Raise DatabaseError if a database has another view than dynabro's, or a trigger and is to be
    written.
    """
    problems = view_and_trigger_problems(schema, triggers=writing)
    if problems:
        name = shown(database)
        raise DatabaseError(
            f"{name}: {'; '.join(problems)}. Try: dynabro db merge {name} --db NEW.db, which "
            "copies the runs alone into a new database"
        )


def _spaced(statement: str) -> str:
    return " ".join(statement.split())


def _digest(statement: str) -> str:
    return hashlib.sha256(_spaced(statement).encode()).hexdigest()[:16]
