"""Transactions of a writer: over one connection, and repeated if the database's server was
restarted meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL

from dynabro_cli.core.errors import DisconnectedError
from dynabro_cli.runs.store.open.servers import through_outages
from dynabro_cli.runs.store.open.translation import busy_seconds, shown, translated_errors

T = TypeVar("T")


class KeptConnection:
    """Transactions, as an engine has them, over one connection, which is open from the first one
    until ``close``.

    When its last connection is closed, SQLite copies its log into the database, waits for the disk,
    and removes the log: this takes longer than a transaction. But a log may not lie about for long:
    if a file is moved into the database's place, it is read with the log that it finds there. So
    close the connection before every wait.

    Args:
        engine: A database opened for writing.

    Attributes:
        engine: The same.
        url: The engine's.
        given_up: True if its server was waited for in vain; then it is not waited for again.
    """

    def __init__(self, engine: Engine) -> None:
        self.url: URL = engine.url
        self.engine, self.given_up = engine, False
        self._connection: Connection | None = None

    @contextlib.contextmanager
    def begin(self) -> Iterator[Connection]:
        """Begin a transaction; commit it at the end of the context, or roll it back and close the
        connection after an error.
        """
        if self._connection is None:
            self._connection = self.engine.connect()
        try:
            with self._connection.begin():
                yield self._connection
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, if it is open; the next transaction opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def transact(engine: Engine | KeptConnection, step: Callable[[Connection], T]) -> T:
    """Return the result of a step in one transaction; if the server closes the connection, repeat
    it for ``busy_seconds``.

    A connection that is lost during a commit does not say whether the commit took place. So a step
    must give the same if it is repeated after its own commit, and must look first whether the rows
    still belong to this process.

    Args:
        engine: A database opened for writing, or a connection to one that recorders share.
        step: Reads and writes with the connection of a transaction.

    Raises:
        DisconnectedError: The server could not be reached for ``busy_seconds``.
    """
    kept = engine if isinstance(engine, KeptConnection) else KeptConnection(engine)

    def act() -> T:
        with translated_errors(engine.url), engine.begin() as connection:
            return step(connection)

    try:
        return through_outages(shown(engine.url), 0 if kept.given_up else busy_seconds(), act)
    except DisconnectedError:
        kept.given_up = True
        raise
