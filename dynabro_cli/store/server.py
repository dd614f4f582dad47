"""Databases that are a server's: connections, turns of writers, and what its errors mean. Proved with PostgreSQL."""

from __future__ import annotations

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
)
from dynabro_cli.store.stopping import stop

TURN = 0x44594E42
"""The number of the lock that writers take in turns: ``DYNB``."""
AGAIN = "what was stored before is intact; repeat the command when the server is there"
FOR_NOW = ("starting up", "shutting down", "too many clients", "connection slots", "too many connections")
"""What a server that is there says when it takes no connection for a while."""


def server_writer(database: str, name: str, patience: Callable[[], float]) -> Engine:
    """An engine that writes. Its connections are tried before use, as servers, and what is between, end idle ones.

    Args:
        database: An SQLAlchemy URL.
        name: The database as it may be printed.
        patience: Gives the seconds for which other writers are waited for.

    Raises:
        DatabaseError: The driver is not installed.
    """
    engine = _engine(database, name, pool_pre_ping=True)
    if engine.dialect.name == "postgresql":
        event.listen(engine, "begin", lambda connection: _take_turns(connection, patience()))
    return engine


def server_reader(database: str, name: str) -> Engine:
    """An engine that reads; arguments and errors as those of ``server_writer``."""
    engine = _engine(database, name, execution_options={"postgresql_readonly": True}, poolclass=NullPool)
    event.listen(engine, "handle_error", _stop_statement)
    return engine


def _stop_statement(context: ExceptionContext) -> None:
    """Where a signal breaks off the waiting for a statement, have the server stop it, and give the connection up."""
    if context.connection is None or isinstance(context.sqlalchemy_exception, DBAPIError):
        return
    stop(context.connection.connection.dbapi_connection)
    context.is_disconnect = True


def _engine(database: str, name: str, **options: Any) -> Engine:
    try:
        return create_engine(database, **options)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        way = "install it with pip, or use SQLite"
        if database.startswith("postgres"):
            way = "type pip install 'psycopg[binary]', and begin the URL with postgresql+psycopg://"
        raise DatabaseError(f"{name}: its driver is not installed ({error}); {way}") from error


def _take_turns(connection: Connection, patience: float) -> None:
    """Wait until no other writer of the database is in a transaction, so that what is read in this one stays true in it.

    SQLite has it so by itself. A writer that stops in the middle of its turn, or whose machine is gone, loses it.
    """
    limits = {"lock_timeout": patience, "idle_in_transaction_session_timeout": patience / 2}
    for setting, seconds in limits.items():
        connection.exec_driver_sql(f"SET LOCAL {setting} = {max(1, round(1000 * seconds))}")  # 0 would be no limit
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({TURN})")


def server_error(error: DBAPIError, database: str, *, opening: bool, patience: float) -> DynabroError | None:
    """What an error stands for, by the code that the SQL standard has for it; None where there is none to tell.

    Args:
        error: A driver's.
        database: The database as it may be printed.
        opening: Whether this is the first that is heard of it, so that it may be named wrongly if it cannot be reached.
        patience: Seconds for which other writers were waited for.
    """
    code = getattr(error.orig, "sqlstate", None) or ""
    reason = (str(error.orig).strip().splitlines() or [""])[0]
    if "connection failed" in reason or "could not connect" in reason:
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
        return CannotWriteError(f"{database}: {reason}; ask its owner for rights, or name another with --db")
    return None
