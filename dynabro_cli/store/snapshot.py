"""Read one moment's state of a possibly untrusted database, while others write to it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection

from dynabro_cli.errors import DatabaseError
from dynabro_cli.store.engine import open_read_only, schema_of
from dynabro_cli.store.schema import unreadable
from dynabro_cli.store.translation import shown, translated_errors


@contextlib.contextmanager
def snapshot(database: str, *, any_tables: bool = False) -> Iterator[Connection]:
    """Open a reading connection that does not see what is written after its first read.

    Unlike a user's own statements, its statements may be any reading statements of SQLite. Bytes that are not UTF-8 become
    surrogates. dynabro's tables are checked to be tables; its views are not checked.

    Args:
        database: A path or a URL.
        any_tables: True if the caller itself checks that the tables are tables.

    Raises:
        NotFoundError: There is no such file.
        DatabaseError: The file is not a dynabro database, has another schema version, or has other objects in the place of
            tables.
    """
    engine = open_read_only(database, any_row=True, any_schema=True)
    try:
        with translated_errors(database), engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                _begin(connection.connection.dbapi_connection)
                problem = None if any_tables else unreadable(schema_of(connection))
                if problem:
                    raise DatabaseError(f"{shown(database)} {problem}. Try: restore a backup, or name another with --db")
            else:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection
    finally:
        engine.dispose()


def _begin(raw: Any) -> None:
    raw.set_authorizer(lambda *_: sqlite3.SQLITE_OK)
    raw.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    raw.isolation_level = None
    raw.execute("PRAGMA cell_size_check = ON")
    raw.execute("BEGIN")
