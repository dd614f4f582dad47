"""Connections to SQLite files: waiting for locks, what a database may do, and ends of statements in
progress.

A statement ends at Ctrl-C and SIGTERM, and after a time limit. Python calls signal handlers between
its own instructions, and a statement of SQLite may take hours. So SQLite calls a function of Python
every few milliseconds. If a handler raises there, SQLite drops the exception, and the statement
ends with an error. The command line then reports the signal (``executors.interruptions``).
PostgreSQL's driver checks for signals while it waits.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Connection

from dynabro_cli.runs.store.open.aggregates import add_aggregates
from dynabro_cli.runs.store.open.translation import busy_seconds

ATTEMPT_SECONDS = 0.25
"""Seconds for which SQLite itself waits for a lock; signals are not seen during this time."""
RETRY_SECONDS = 0.02
OPERATIONS = 10_000
"""Operations of SQLite between two calls: a few milliseconds at most, except within one call of a
function such as INSTR.
"""
READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
"""Actions of a statement that only reads."""
DESCRIBING = ("table_info", "table_xinfo", "table_list")
"""Pragmas that describe tables."""


def prepare_writer(connection: sqlite3.Connection, _record: Any) -> None:
    """Prepare a connection for an engine that writes."""
    distrust(connection)
    connection.isolation_level = None  # SQLAlchemy, not the driver, begins transactions
    _switch_to_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # for macOS, where fsync does not reach the disk
    connection.execute("PRAGMA foreign_keys = ON")


def distrust(connection: sqlite3.Connection) -> None:
    """Prevent a database's own triggers and views from calling functions that act outside of the
    database.
    """
    connection.execute("PRAGMA trusted_schema = OFF")


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL, which SQLite's own timeout does not wait for."""

    def switch() -> None:
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode = WAL")

    while_locked(switch, busy_seconds())


def begin_immediate(connection: Connection) -> None:
    """Take the write lock at once: a read that turns into a write would fail at once, without
    waiting.
    """
    raw: Any = connection.connection.dbapi_connection
    while_locked(lambda: raw.execute("BEGIN IMMEDIATE"), busy_seconds())


def while_locked(act: Callable[[], object], patience: float) -> None:
    """Repeat ``act`` while another program has locked the database, for at most ``patience``
    seconds.

    SQLite itself waits for ``ATTEMPT_SECONDS``. Between its attempts signals are seen.
    """
    end = time.monotonic() + patience
    while True:
        try:
            act()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(RETRY_SECONDS)


def connect_reader(uri: str, patience: float | None = None) -> sqlite3.Connection:
    """Connect to a file by its URI; wait for another program's lock here, where a signal can end
    the wait. Signals end statements, too.

    Args:
        uri: URI of SQLite, with its mode.
        patience: Seconds to wait; None: ``busy_seconds``.

    Raises:
        sqlite3.OperationalError: The file is locked for longer than ``patience``.
    """
    patience = busy_seconds() if patience is None else patience
    connection = sqlite3.connect(uri, uri=True, timeout=min(ATTEMPT_SECONDS, patience))
    look = "SELECT 1 FROM sqlite_master LIMIT 1"
    try:
        while_locked(lambda: connection.execute(look).fetchall(), patience)
        connection.execute(f"PRAGMA busy_timeout = {round(1000 * patience)}")
        distrust(connection)
        stop_at_signals(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def allow_reading_only(connection: sqlite3.Connection) -> None:
    """Refuse every SQL action except reading: ATTACH and VACUUM INTO would write files even on a
    read-only database.

    Bytes that are not UTF-8 are returned as escapes. Queries have ``median`` and the like.
    """
    add_aggregates(connection)
    connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
    connection.execute("PRAGMA query_only = ON")
    connection.set_authorizer(_authorize)


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    allowed = action in READING and second != "load_extension"
    # table functions such as json_each are reported as a change of the schema, which query_only
    # prevents
    allowed |= action == sqlite3.SQLITE_UPDATE and first == "sqlite_master"
    allowed |= action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in DESCRIBING
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


class TimeLimit:
    """A time limit, which begins now.

    Args:
        seconds: None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """True if the time is over."""
        return time.monotonic() >= self._end


def stop_at_signals(connection: sqlite3.Connection) -> None:
    """Stop the statements of an SQLite connection at Ctrl-C and SIGTERM, if Python's main thread
    executes them.
    """
    # entering Python lets its signal handlers run
    connection.set_progress_handler(lambda: 0, OPERATIONS)


@contextlib.contextmanager
def within(limit: TimeLimit, connection: Any) -> Iterator[None]:
    """Stop the statements of a driver's connection, within the context and with an error of the
    driver, when a time is over.

    A server measures each statement, and a cursor is read by several statements. So its reader
    checks ``limit``, too.
    """
    if limit.seconds is None:
        yield
    elif isinstance(connection, sqlite3.Connection):
        connection.set_progress_handler(lambda: limit.over, OPERATIONS)
        try:
            yield
        finally:
            stop_at_signals(connection)
    else:
        # 0: no limit
        connection.execute(
            f"SET LOCAL statement_timeout = {max(1, math.ceil(1000 * limit.seconds))}"
        )
        yield
