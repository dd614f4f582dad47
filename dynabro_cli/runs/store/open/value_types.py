"""Conditions on the types of values: SQLite stores any type in any column."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Double,
    Integer,
    String,
    Table,
    Text,
    text,
)

from dynabro_cli.core.limits import LARGEST_TEXT
from dynabro_cli.runs.store.tables import (
    SWEEP_STATUSES,
    TRIAL_STATUSES,
    metadata,
    runs,
    sweeps,
    trials,
)

_COLUMNS = [column for table in metadata.tables.values() for column in table.c]
NUMBERS = {column.name for column in _COLUMNS if isinstance(column.type, Integer | Double)} - {
    column.name for column in _COLUMNS if isinstance(column.type, String)
}
"""Names that are columns of numbers in all tables that have them."""
STATUSES_OF = {sweeps: SWEEP_STATUSES, trials: TRIAL_STATUSES}
MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?")


def sane_row_sql(dialect: str, table: Table = runs) -> str:
    """Return a condition for rows whose values have their columns' types, and sizes that can be
    read.
    """
    return f"({_wrong_column_sql(table, dialect)}) IS NULL"


def unsound_rows(connection: Connection, table: Table) -> dict[tuple[Any, ...], str]:
    """Return the problem of each row that dynabro cannot have written, by its primary key; no
    problem quotes the database.

    Its problems are a value of another type than its column's, an invalid timestamp, and an unknown
    status.
    """
    dialect, keys = connection.dialect.name, ", ".join(column.name for column in table.primary_key)
    values = f"SELECT {keys}, {_wrong_column_sql(table, dialect)} AS wrong FROM {table.name}"
    reasons: dict[tuple[Any, ...], str] = {
        tuple(key): type_problem(table, column)
        for *key, column in connection.execute(
            text(f"SELECT * FROM ({values}) AS found WHERE wrong IS NOT NULL")
        )
    }
    times = [column.name for column in table.c if isinstance(column.type, DateTime)]
    for name in times:
        given = text(
            f"SELECT {keys}, {name} FROM {table.name} WHERE {name} IS NOT NULL AND "
            f"{sane_row_sql(dialect, table)}"
        )
        wrong = [key for *key, time in connection.execute(given) if moment(time) is None]
        reasons |= {tuple(key): f"{name} is not a valid timestamp" for key in wrong}
    if table in STATUSES_OF:
        unknown = text(f"SELECT {keys} FROM {table.name} WHERE status NOT IN {STATUSES_OF[table]}")
        reasons = dict.fromkeys(map(tuple, connection.execute(unknown)), "unknown status") | reasons
    return reasons


def type_problem(table: Table, column: str) -> str:
    """Return the problem of a value that does not fit its column."""
    return f"a value of {table.name}.{column} is of another type, or too large"


def moment(value: Any) -> dt.datetime | None:
    """Return a time from the value of any database; None if it is not valid."""
    if isinstance(value, str) and MOMENT.fullmatch(value):
        try:
            return dt.datetime.fromisoformat(value)
        except ValueError:
            return None
    return value if isinstance(value, dt.datetime) else None


def wrong_types_sql(table: Table, run_id: str, dialect: str) -> str:
    """Return a statement for the runs with a value of another type than its column's in ``table``,
    and one such column.
    """
    values = (
        f"SELECT {run_id} AS run_id, {_wrong_column_sql(table, dialect)} AS wrong FROM {table.name}"
    )
    return (
        f"SELECT run_id, MIN(wrong) FROM ({values}) AS found WHERE wrong IS NOT NULL GROUP "
        "BY run_id"
    )


def _wrong_column_sql(table: Table, dialect: str) -> str:
    """Return an expression for the first column with a value of another type; NULL if all values
    fit.
    """
    conditions = {column.name: _condition(column, dialect) for column in table.c}
    cases = [
        f"WHEN {condition} THEN '{name}'" for name, condition in conditions.items() if condition
    ]
    return f"CASE {' '.join(cases)} END" if cases else "CAST(NULL AS TEXT)"


def _condition(column: Column[Any], dialect: str) -> str | None:
    """Return an SQL condition that is true if a value does not fit its column's type."""
    name, kind, sqlite = column.name, column.type, dialect == "sqlite"
    types: tuple[str, ...]
    if isinstance(kind, Double):
        # PostgreSQL orders NaN above all numbers
        types, limits = ("real", "integer"), f"ABS({name}) > 1.7976931348623157e308"
    elif isinstance(kind, Boolean):
        types, limits = ("integer",), f"{name} NOT IN (0, 1)"
    elif isinstance(kind, DateTime):
        types, limits = ("text",), f"LENGTH({name}) NOT BETWEEN 19 AND 26"
    elif isinstance(kind, Integer):
        bits = 63 if isinstance(kind, BigInteger) else 31
        types, limits = ("integer",), f"{name} < -{2**bits - 1} OR {name} > {2**bits - 1}"
    elif isinstance(kind, String):
        types, limits = ("text",), f"LENGTH({_bytes(name, sqlite)}) > {kind.length or LARGEST_TEXT}"
    else:
        return None
    if not sqlite:
        return f"({limits})" if isinstance(kind, Double | Text) else None
    legal = (*types, "null") if column.nullable else types
    return f"(TYPEOF({name}) NOT IN ({', '.join(map(repr, legal))}) OR {limits})"


def _bytes(name: str, sqlite: bool) -> str:
    # for SQLite, the length of a text ends at the first zero byte
    return f"CAST({name} AS BLOB)" if sqlite else name
