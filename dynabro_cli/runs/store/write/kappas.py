"""The table ``verified_kappa``: results of searches for the worst input of aggregation rules."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, delete, insert, text

from dynabro_cli.core.limits import LARGEST_INPUT
from dynabro_cli.runs.store.open.value_types import moment, sane_row_sql, unsound_rows
from dynabro_cli.runs.store.tables import KAPPA_KEY, verified_kappa
from dynabro_cli.runs.store.write.transactions import transact

NUMBER_WIDTH = 25
"""Most characters per number of an input, with its comma and brackets."""


def store(engine: Engine, findings: Sequence[Mapping[str, Any]], version: str) -> None:
    """Store findings; a finding replaces one of the same search by the same version.

    Args:
        engine: A database opened for writing.
        findings: The columns of the table, except ``id``, ``version`` and ``created_at``; ``worst``
            as lists of numbers.
        version: The version of the program.

    Raises:
        DynabroError: The database cannot be written.
    """
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    rows = [
        {**finding, "worst": _written(finding["worst"]), "version": version, "created_at": now}
        for finding in findings
    ]

    def put(connection: Connection) -> None:
        for row in rows:
            _put(connection, row)

    transact(engine, put)


def new_findings(reading: Connection, here: Connection | None) -> list[dict[str, Any]]:
    """Return the sound findings of another database that are missing here, as they would be stored.

    Args:
        reading: A connection to the other database.
        here: A connection to this database; None if it does not exist.
    """
    wrong, present = (
        unsound_rows(reading, verified_kappa),
        {_key(row) for row in _sane(here)} if here is not None else set(),
    )
    rows = [
        dict(row)
        for row in _sane(reading)
        if (row["id"],) not in wrong and _key(row) not in present
    ]
    return [
        {
            name: bool(value) if name in ("unbounded", "complete") else value
            for name, value in row.items()
            if name != "id"
        }
        | {"created_at": moment(row["created_at"])}
        for row in rows
    ]


def copy(reading: Connection, connection: Connection) -> int:
    """Copy the new findings of another database in the transaction of ``connection``; return their
    number.
    """
    rows = new_findings(reading, connection)
    for row in rows:
        _put(connection, row)
    return len(rows)


def _put(connection: Connection, row: Mapping[str, Any]) -> None:
    same = [verified_kappa.c[name] == row[name] for name in KAPPA_KEY]
    connection.execute(delete(verified_kappa).where(*same))
    connection.execute(insert(verified_kappa).values(row))


def _written(worst: Sequence[Sequence[float]]) -> str | None:
    """Return an input as compact JSON; None if it is too large."""
    count = sum(len(row) for row in worst)
    return (
        json.dumps(worst, separators=(",", ":")) if NUMBER_WIDTH * count <= LARGEST_INPUT else None
    )


def _sane(connection: Connection) -> list[RowMapping]:
    """Return the findings whose values fit their columns' types."""
    names = ", ".join(verified_kappa.c.keys())
    where = sane_row_sql(connection.dialect.name, verified_kappa)
    return list(
        connection.execute(
            text(f"SELECT {names} FROM verified_kappa WHERE {where} ORDER BY id")
        ).mappings()
    )


def _key(row: Mapping[str, Any] | RowMapping) -> tuple[Any, ...]:
    return tuple(row[name] for name in KAPPA_KEY)
