"""Environments of runs: programs, threads and kernels behind the numbers, each stored once for all
runs that share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select, text

from dynabro_cli.runs.store.tables import environments

DIGITS = 16
"""Hexadecimal digits of an id."""
VERSIONS = (
    "(SELECT versions FROM environments WHERE environments.id = runs.environment_id) AS versions"
)
"""Column of a query on ``runs``, as SQL: the versions of the run's environment."""
_ADD = text(
    "INSERT INTO environments (id, versions) VALUES (:id, :versions) ON CONFLICT DO NOTHING"
)


def environment_id(connection: Connection, versions: str) -> str:
    """Return the id of an environment, and store the environment if it is new.

    Args:
        connection: The transaction that stores the run's row.
        versions: The versions, as JSON.
    """
    digest = hashlib.sha256(versions.encode()).hexdigest()[:DIGITS]
    if (
        connection.execute(select(environments.c.id).where(environments.c.id == digest)).first()
        is None
    ):
        # another process may add the same at this moment
        connection.execute(_ADD, {"id": digest, "versions": versions})
    return digest


def versions_of(connection: Connection, environment: str) -> str:
    """Return the versions of an environment, as JSON."""
    versions: str = connection.execute(
        select(environments.c.versions).where(environments.c.id == environment)
    ).scalar_one()
    return versions


def as_columns(connection: Connection, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a run as columns of ``runs``: ``versions``, if there are any, become an
    environment's id.
    """
    columns = dict(values)
    if "versions" in columns:
        columns["environment_id"] = environment_id(connection, columns.pop("versions"))
    return columns
