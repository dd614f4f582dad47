"""Databases on a server: connections, turns of writers, and the meaning of errors. Tested with PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.exc import DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from dynabro_cli.errors import (
    BusyError,
    CannotWriteError,
    DatabaseError,
    DisconnectedError,
    DynabroError,
    NotFoundError,
    StorageError,
    first_line,
)

TURN = 0x44594E42
"""Number of the lock that writers take in turns: ``DYNB``."""
AGAIN = "what was stored before is intact; repeat the command when the server is there"
NO_CONNECTION = ("connection failed", "connection is bad", "could not connect", "connection timeout expired")
"""Messages of drivers that have opened no connection."""
FOR_NOW = ("starting up", "shutting down", "too many clients", "connection slots", "too many connections")
"""Messages of a server that temporarily accepts no connection."""


def server_writer(database: str, name: str, patience: Callable[[], float]) -> Engine:
    """Return an engine that writes; connections are tested before use, as servers and networks close idle ones.

    Args:
        database: An SQLAlchemy URL.
        name: The database as it may be printed.
        patience: Returns the seconds to wait for other writers.

    Raises:
        DatabaseError: The driver is not installed.
    """
    engine = _engine(database, name, pool_pre_ping=True)
    if engine.dialect.name == "postgresql":
        event.listen(engine, "begin", lambda connection: _take_turns(connection, patience()))
    return engine


def server_reader(database: str, name: str) -> Engine:
    """Return an engine that reads; arguments and errors as in ``server_writer``."""
    engine = _engine(database, name, execution_options={"postgresql_readonly": True}, poolclass=NullPool)
    event.listen(engine, "handle_error", _stop_statement)
    return engine


def _stop_statement(context: ExceptionContext) -> None:
    """Let the server stop the statement, and drop the connection, if a signal interrupts the wait for a statement."""
    if context.connection is None or isinstance(context.sqlalchemy_exception, DBAPIError):
        return
    raw: Any = context.connection.connection.dbapi_connection
    with contextlib.suppress(Exception):  # a connection that is lost has no statement
        raw.cancel()
    context.is_disconnect = True


def _engine(database: str, name: str, **options: Any) -> Engine:
    try:
        return create_engine(database, **options)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        way = "pip install of the driver, or SQLite"
        if database.startswith("postgres"):
            way = "pip install 'psycopg[binary]', and a URL that begins with postgresql+psycopg://"
        raise DatabaseError(f"{name}: its driver is not installed ({error}). Try: {way}") from error


def _take_turns(connection: Connection, patience: float) -> None:
    """Wait until no other writer of the database is in a transaction, so that what this transaction reads stays true.

    SQLite does this by itself. A writer that stops in the middle of its turn, or whose machine is lost, loses its turn.
    """
    limits = {"lock_timeout": patience, "idle_in_transaction_session_timeout": patience / 2}
    for setting, seconds in limits.items():
        connection.exec_driver_sql(f"SET LOCAL {setting} = {max(1, round(1000 * seconds))}")  # 0 would mean no limit
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({TURN})")


def server_error(error: DBAPIError, database: str, *, opening: bool, patience: float) -> DynabroError | None:
    """Return the error of this package for a driver's error, by its SQLSTATE code; None for an unknown code.

    Args:
        error: An error of the driver.
        database: The database as it may be printed.
        opening: True on first contact: an unreachable database is then reported as a wrong name, not as an outage.
        patience: Seconds spent waiting for other writers.
    """
    code = getattr(error.orig, "sqlstate", None) or ""
    reason = first_line(error.orig)
    if any(words in reason for words in NO_CONNECTION):
        if opening and not any(words in reason for words in FOR_NOW):
            return NotFoundError(
                f"{database} cannot be reached: {reason}; start the server, create the database, or correct --db"
            )
        return DisconnectedError(f"{database} cannot be reached for now: {reason}; {AGAIN}")
    if code == "53100":
        return StorageError(f"{database}: {reason}; make room; what was stored before is intact")
    if error.connection_invalidated or code.startswith(("40", "53", "57")):  # deadlocks, a busy server, interventions
        return DisconnectedError(f"{database}: {reason}; {AGAIN}")
    if code == "55P03":
        return BusyError(
            f"{database} was locked by another program for {patience:g} s; end that program, then repeat the command"
        )
    if code == "42501":
        return CannotWriteError(f"{database}: {reason}. Try: ask its owner for rights, or another --db")
    return None
