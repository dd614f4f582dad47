"""One connection for transactions that follow one another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL


class KeptConnection:
    """Transactions, as an engine has them, over one connection, which is open from the first one until ``close``.

    When its last connection is closed, SQLite copies its log into the database, waits for the disk, and removes the log: this
    takes longer than a transaction. But a log may not lie about for long: if a file is moved into the database's place, it is
    read with the log that it finds there. So close the connection before every wait.

    Args:
        engine: A database opened for writing.

    Attributes:
        url: The engine's.
    """

    def __init__(self, engine: Engine) -> None:
        self.url: URL = engine.url
        self._engine = engine
        self._connection: Connection | None = None

    @contextlib.contextmanager
    def begin(self) -> Iterator[Connection]:
        """Begin a transaction; commit it at the end of the context, or roll it back and close the connection after an error."""
        if self._connection is None:
            self._connection = self._engine.connect()
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
