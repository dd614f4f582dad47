"""Stop statements in progress: at Ctrl-C and SIGTERM, and after a time limit.

Python calls signal handlers between its own instructions, and a statement of SQLite may take hours. So SQLite calls a function
of Python every few milliseconds; if a handler raises there, SQLite drops the exception, and the statement ends with an error
of its own. The command line then reports the signal (``executors.interruptions``). PostgreSQL's driver checks for signals
while it waits.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Engine

OPERATIONS = 10_000
"""Operations of SQLite between two calls: a few milliseconds at most, except within one call of a function such as INSTR."""


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


def stoppable(engine: Engine) -> None:
    """Stop the statements of an SQLite engine at Ctrl-C and SIGTERM, if Python's main thread executes them."""
    from sqlalchemy import event

    event.listen(engine, "connect", lambda connection, _record: stop_at_signals(connection))


def stop_at_signals(connection: sqlite3.Connection) -> None:
    """Stop the statements of an SQLite connection at Ctrl-C and SIGTERM, if Python's main thread executes them."""
    connection.set_progress_handler(lambda: 0, OPERATIONS)


@contextlib.contextmanager
def within(limit: TimeLimit, connection: Any) -> Iterator[None]:
    """Within the context, stop the statements of a driver's connection, with an error of the driver, when a time is over.

    A server measures each statement, and a cursor is read by several; so whoever reads it checks ``limit`` as well.
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
        connection.execute(f"SET LOCAL statement_timeout = {max(1, math.ceil(1000 * limit.seconds))}")  # 0: no limit
        yield
