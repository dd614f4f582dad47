"""Conditions on the types of values: SQLite stores any type in any column."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Connection, DateTime, Double, Integer, String, Table, Text, text

from dynabro_cli.errors import DatabaseError
from dynabro_cli.store.tables import metadata, runs, sweeps

LARGEST_TEXT = 100_000
"""Most bytes of a text; the longest texts of dynabro, errors, have 1/25 of it."""
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters and broken bytes, which are not printed."""
_COLUMNS = [column for table in metadata.tables.values() for column in table.c]
NUMBERS = {column.name for column in _COLUMNS if isinstance(column.type, Integer | Double)} - {
    column.name for column in _COLUMNS if isinstance(column.type, String)
}
"""Names that are columns of numbers in all tables that have them."""
MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?")


def sane_row(dialect: str, table: Table = runs) -> str:
    """Return a condition for rows whose values have their columns' types, and sizes that can be read."""
    return f"({_other_type(table, dialect)}) IS NULL"


def refuse_other_types(connection: Connection, database: str) -> None:
    """Raise DatabaseError if an SQLite database has a run or sweep that cannot be read: with a value of another type than its
    column's, or an invalid timestamp.
    """
    for table in (runs, sweeps):
        conditions = [sane_row("sqlite", table)]
        times = [column.name for column in table.c if isinstance(column.type, DateTime)]
        conditions += [f"({name} IS NULL OR {_is_moment(name)})" for name in times]
        row = f"SELECT id FROM {table.name} WHERE NOT ({' AND '.join(conditions)}) LIMIT 1"
        found = connection.exec_driver_sql(row).first()
        if found is not None:
            raise DatabaseError(
                f"{database}: row {found[0]} of {table.name} has a value that is not of its column's type. "
                f"Try: dynabro db check --db {database}, which names it"
            )


def _is_moment(name: str) -> str:
    """Return a condition for texts that Python accepts as a time: SQLite takes 30 February for 2 March."""
    digits = "[0-9]" * 6
    day = f"SUBSTR({name}, 1, 10)"
    same = f"DATETIME({name}) IS SUBSTR({name}, 1, 19) AND DATE({day}, '+0 days') IS {day}"
    return f"({same} AND {name} > '0001' AND (LENGTH({name}) = 19 OR {name} GLOB '*.{digits}'))"


def of_wrong_types(connection: Connection, table: Table) -> dict[int, str]:
    """Return, by ``id``, the rows with a value of another type than its column's, with one such column."""
    found = connection.execute(text(of_another_type(table, "id", connection.dialect.name)))
    return {number: column for number, column in found if isinstance(number, int)}


def moment(value: Any) -> dt.datetime | None:
    """Return a time from the value of any database; None if it is not valid."""
    if isinstance(value, str) and MOMENT.fullmatch(value):
        try:
            return dt.datetime.fromisoformat(value)
        except ValueError:
            return None
    return value if isinstance(value, dt.datetime) else None


def of_another_type(table: Table, run_id: str, dialect: str) -> str:
    """Return a statement for the runs with a value of another type than its column's in ``table``, and one such column."""
    values = f"SELECT {run_id} AS run_id, {_other_type(table, dialect)} AS wrong FROM {table.name}"
    return f"SELECT run_id, MIN(wrong) FROM ({values}) AS found WHERE wrong IS NOT NULL GROUP BY run_id"


def _other_type(table: Table, dialect: str) -> str:
    """Return an expression for the first column with a value of another type; NULL if all values fit."""
    conditions = {column.name: _condition(column, dialect) for column in table.c}
    cases = [f"WHEN {condition} THEN '{name}'" for name, condition in conditions.items() if condition]
    return f"CASE {' '.join(cases)} END" if cases else "CAST(NULL AS TEXT)"


def _condition(column: Column[Any], dialect: str) -> str | None:
    """Return an SQL condition that is true if a value does not fit its column's type."""
    name, kind, sqlite = column.name, column.type, dialect == "sqlite"
    types: tuple[str, ...]
    if isinstance(kind, Double):
        types, limits = ("real", "integer"), f"ABS({name}) > 1.7976931348623157e308"  # PostgreSQL orders NaN above all numbers
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
    return f"CAST({name} AS BLOB)" if sqlite else name  # for SQLite, the length of a text ends at the first zero byte
