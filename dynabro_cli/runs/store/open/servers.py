"""Databases on a server: connections, turns of writers, and outages. Tested with PostgreSQL."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import NullPool

from dynabro_cli.core.errors import DatabaseError, DisconnectedError, OutageWarning
from dynabro_cli.runs.store.open.translation import REACHED, READ_ONLY, busy_seconds, shown

T = TypeVar("T")

# what they log on lost connections is raised, too; without a handler, Python prints it
for library in ("psycopg", "sqlalchemy.pool"):
    logging.getLogger(library).addHandler(logging.NullHandler())

PAUSE_SECONDS = 0.5
"""Pause between two attempts to reach a server."""
TURN = 0x44594E42
"""Number of the lock that writers take in turns: ``DYNB``."""


def server_writer(database: str) -> Engine:
    """Return an engine that writes; connections are tested before use, because servers and networks
    close idle ones.

    Args:
        database: An SQLAlchemy URL.

    Raises:
        DatabaseError: The driver is not installed.
    """
    engine = _engine(database, pool_pre_ping=True)
    if engine.dialect.name == "postgresql":
        event.listen(engine, "begin", lambda connection: _take_turns(connection, busy_seconds()))
    return engine


def server_reader(database: str) -> Engine:
    """Return an engine that reads; arguments and errors as in ``server_writer``."""
    engine = _engine(database, execution_options={"postgresql_readonly": True}, poolclass=NullPool)
    event.listen(engine, "handle_error", _stop_statement)
    return engine


def _drop_lost(context: ExceptionContext) -> None:
    """Drop the connection if the driver itself, and not the server, reports that it does not work
    any more.

    A connection that is cut while psycopg sends rows in a pipeline stays open and busy, so
    SQLAlchemy takes it for intact.
    """
    error = context.sqlalchemy_exception
    code = getattr(getattr(error, "orig", None), "sqlstate", None)
    broken = isinstance(error, OperationalError) and code is None
    # the address may belong to another server when the connection is opened again
    if context.connection is not None and (broken or code == READ_ONLY):
        context.is_disconnect = True


def _stop_statement(context: ExceptionContext) -> None:
    """Let the server stop the statement, and drop the connection, if a signal interrupts the wait
    for a statement.
    """
    if context.connection is None or isinstance(context.sqlalchemy_exception, DBAPIError):
        return
    raw: Any = context.connection.connection.dbapi_connection
    with contextlib.suppress(Exception):  # a connection that is lost has no statement
        raw.cancel()
    context.is_disconnect = True


def _engine(database: str, **options: Any) -> Engine:
    try:
        engine = create_engine(database, **options)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        way = "pip install of the driver, or SQLite"
        if database.startswith("postgres"):
            way = "pip install 'psycopg[binary]', and a URL that begins with postgresql+psycopg://"
        raise DatabaseError(
            f"{shown(database)}: its driver is not installed ({error}). Try: {way}"
        ) from error
    event.listen(engine, "handle_error", _drop_lost)
    # first: SQLAlchemy asks the server for its version, and may lose it
    event.listen(engine, "connect", lambda *_: REACHED.add(shown(database)), insert=True)
    return engine


def _take_turns(connection: Connection, patience: float) -> None:
    """Wait until no other writer of the database is in a transaction, so that what this transaction
    reads stays true.

    SQLite does this by itself. A writer that stops in the middle of its turn, or whose machine is
    lost, loses its turn.
    """
    limits = {"lock_timeout": patience, "idle_in_transaction_session_timeout": patience / 2}
    for setting, seconds in limits.items():
        # 0 would mean no limit
        connection.exec_driver_sql(f"SET LOCAL {setting} = {max(1, round(1000 * seconds))}")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({TURN})")


def through_outages(name: str, patience: float, act: Callable[[], T]) -> T:
    """Return the result of ``act``; if the server closes the connection, repeat it for ``patience``
    seconds.

    A connection that is lost during a commit does not say whether the commit took place. So ``act``
    must give the same result if it is repeated after its own commit.

    Args:
        name: The database as it may be printed.
        patience: Seconds of an outage after which it is given up; with 0 it is repeated once.
        act: Reads or writes; errors of the driver are translated.

    Raises:
        DisconnectedError: The server could not be reached for ``patience`` seconds.
    """
    lost, attempts = time.monotonic(), 0
    while True:
        try:
            result = act()
        except DisconnectedError:
            attempts += 1
            if attempts == 1:  # a connection that was closed is open again at once
                lost = time.monotonic()
                continue
            if time.monotonic() - lost >= patience:
                raise
            if attempts == 2:
                _tell(f"{name} cannot be reached; waiting for its server, at most {patience:g} s")
            time.sleep(min(PAUSE_SECONDS, patience))
        else:
            if attempts > 1:
                _tell(f"{name} is back after {time.monotonic() - lost:.1f} s")
            return result


def _tell(line: str) -> None:
    warnings.warn(line, OutageWarning, stacklevel=4)
