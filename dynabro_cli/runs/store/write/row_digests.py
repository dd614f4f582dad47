"""One digest of all rows of a run with a result: it is written with the last row, and shows later
if a value has changed.

SQLite notices a damaged page, but not a flipped bit in a number. The digest covers the run's row
and its rows in the other tables, in the order of their keys, in a form that is the same in every
database.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Table, Text, bindparam, update

from dynabro_cli.runs.store.environments import VERSIONS
from dynabro_cli.runs.store.tables import (
    HAS_RESULT,
    byzantine_counts,
    evaluations,
    identities,
    metrics,
    recovery,
    rounds,
    runs,
    worker_labels,
)

RUN_TABLES = (rounds, byzantine_counts, identities, evaluations, metrics, recovery, worker_labels)
"""Tables whose rows belong to runs, in the order of the digest."""
BATCH = 1000
LEFT_OUT = "id rows_digest code_digests model_file model_size model_sha256 tags note".split()
"""Columns of ``runs`` that a merge numbers anew, or that may change after the end of a run."""
INSTEAD = {"environment_id": VERSIONS}
"""Values that are digested in place of a column that only names a row."""


def digests(connection: Connection, run_id: int | None = None) -> dict[int, str]:
    """Return the digest of the rows of a run with a result, or of all of them, by id.

    Args:
        connection: A connection to the database; all of its rows are read once, in the order of the
            runs.
        run_id: One run; None for all.
    """
    encode = json.JSONEncoder(default=_json_default).encode
    names = ", ".join(INSTEAD.get(name, name) for name in runs.c.keys() if name not in LEFT_OUT)  # noqa: SIM118
    hashes = {
        row[0]: hashlib.sha256()
        for row in _rows(connection, f"SELECT id FROM runs WHERE {HAS_RESULT}", "id", run_id)
    }
    statements = [("runs", f"SELECT id, {names} FROM runs WHERE {HAS_RESULT}", "id")]
    statements += [
        (table.name, _statement(table), _order(table, connection.dialect.name))
        for table in RUN_TABLES
    ]
    for name, statement, order in statements:
        for row in _rows(connection, statement, order, run_id):
            digest = hashes.get(row[0])
            if digest is not None:  # other rows belong to runs without a result
                digest.update(f"{name}{encode(row[1:])}".encode())
    return {number: digest.hexdigest() for number, digest in hashes.items()}


def store(connection: Connection, run_id: int | None = None) -> None:
    """Store the digest of a run with a result, or of all of them, in the caller's transaction."""
    values = [
        {"number": number, "digest": digest}
        for number, digest in digests(connection, run_id).items()
    ]
    if values:
        change = (
            update(runs)
            .where(runs.c.id == bindparam("number"))
            .values(rows_digest=bindparam("digest"))
        )
        connection.execute(change, values)


def digest_problems(connection: Connection) -> dict[int, str]:
    """Return the runs with a result whose rows do not have the stored digest, by id, with the
    problem.
    """
    stored = {
        row[0]: row[1]
        for row in connection.exec_driver_sql(
            f"SELECT id, rows_digest FROM runs WHERE {HAS_RESULT}"
        )
    }
    return {
        number: "it has no digest of its rows"
        if stored[number] is None
        else "its rows are not as they were stored"
        for number, digest in digests(connection).items()
        if stored[number] != digest
    }


def _statement(table: Table) -> str:
    return f"SELECT {', '.join(table.c.keys())} FROM {table.name} WHERE TRUE"


def _order(table: Table, dialect: str) -> str:
    """Return the columns of a table's key; PostgreSQL would order texts by the rules of a
    language.
    """
    plain = ' COLLATE "C"' if dialect == "postgresql" else ""
    return ", ".join(
        column.name + plain * isinstance(column.type, Text) for column in table.primary_key.columns
    )


def _rows(
    connection: Connection, statement: str, order: str, run_id: int | None
) -> Iterator[Sequence[Any]]:
    condition = "" if run_id is None else f" AND {order.partition(',')[0]} = {int(run_id)}"
    rows = connection.exec_driver_sql(
        f"{statement}{condition} ORDER BY {order}", execution_options={"yield_per": BATCH}
    )
    if connection.dialect.name == "sqlite":
        yield from rows
    else:  # only SQLite stores truth as 0 and 1
        yield from (
            [int(value) if isinstance(value, bool) else value for value in row] for row in rows
        )


def _json_default(value: Any) -> Any:
    """Return a value that JSON does not have: a server's time is written as SQLite has it, and
    anything else shows itself.
    """
    return (
        value.isoformat(sep=" ", timespec="microseconds")
        if isinstance(value, dt.datetime)
        else repr(value)
    )
