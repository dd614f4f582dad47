"""Files of SQLite databases: their paths, read-only URIs, schema versions and schemas."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from dynabro_cli.errors import CannotWriteError, DatabaseError, NotFoundError, SpecError
from dynabro_cli.store.connections import connect_reader
from dynabro_cli.store.reserved import SQLITE_MAGIC, first_bytes
from dynabro_cli.store.schema import SchemaEntry, entries
from dynabro_cli.store.tables import APPLICATION_ID
from dynabro_cli.store.translation import translated_errors

IN_MEMORY = ":memory:"
"""Name by which SQLite opens a database in memory."""


def sqlite_path(database: str) -> Path | None:
    """Return the file of an SQLite database; None for a database of another kind.

    Raises:
        SpecError: ``database`` is empty, or in memory.
        DatabaseError: ``database`` looks like a URL, but SQLAlchemy does not know it.
    """
    if not database.strip():
        raise SpecError(f"db={database!r} names no file. Try: a path, such as --db results.db")
    if "://" not in database:
        try:
            path = Path(database).expanduser()
            path.exists()
        except (OSError, RuntimeError, ValueError) as error:
            raise CannotWriteError(f"{database!r} cannot be a file ({error}). Try: another --db") from error
        if str(path) == IN_MEMORY:
            raise SpecError(f"db={database}: a database in memory is lost when the command ends. Try: --db results.db")
        return path
    try:
        url = make_url(database)
    except (ArgumentError, ValueError) as error:
        kind = database.partition("://")[0]  # what follows may hold a password
        raise DatabaseError(
            f"{kind}://... is not a database URL. Try: a path, or a URL such as sqlite:///results.db"
        ) from error
    if url.get_backend_name() != "sqlite":
        return None
    if not url.database or str(Path(url.database)) == IN_MEMORY:
        raise DatabaseError(f"{database} names no file, and results are to be kept. Try: a path, such as --db results.db")
    return Path(url.database)


def read_only_uri(path: Path, *, for_a_moment: bool = False) -> str:
    """Return a read-only URI.

    The URI is immutable if nobody is writing and the files that SQLite shares with writers could not be created, or if the
    database is read ``for_a_moment`` only. Then no files are left behind.
    """
    path = path.resolve()
    wal = path.with_name(path.name + "-wal")
    try:
        size = wal.stat().st_size
        quiet = for_a_moment and not size
    except FileNotFoundError:  # the last writer removes it
        quiet = True
    lonely = quiet and (for_a_moment or not os.access(path.parent, os.W_OK))
    return f"{path.as_uri()}?mode=ro" + ("&immutable=1" if lonely else "")


def file_version(path: Path) -> int | None:
    """Return the schema version of a dynabro database, None without tables; the file is not written.

    Raises:
        DatabaseError: The file is not a dynabro database, or is damaged.
        NotFoundError: The file cannot be read.
    """
    return examined(path)[0]


def examined(path: Path, patience: float | None = None) -> tuple[int | None, list[SchemaEntry]]:
    """Return schema version and schema of a file; ``patience`` as in ``open_read_only``, errors as in ``file_version``."""
    stranger = f"{path} is not a dynabro database. Try: another --db"
    if path.is_dir():
        raise DatabaseError(f"{path} is a folder, not a database. Try: a file for --db")
    if path.exists() and not path.is_file():
        raise DatabaseError(f"{path} is a device or a pipe, not a database. Try: a file for --db")
    try:
        head = first_bytes(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no database {path}. Try: dynabro run, which makes one, or another --db") from error
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read ({error.strerror}). Try: another --db") from error
    if not head:
        return None, []
    if head != SQLITE_MAGIC:
        raise DatabaseError(stranger)
    uri = read_only_uri(path, for_a_moment=True)
    with translated_errors(str(path)), contextlib.closing(connect_reader(uri, patience)) as connection:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        found = entries(connection)
    if application == 0 and version == 0 and not found:
        return None, []
    if application != APPLICATION_ID:
        raise DatabaseError(stranger)
    return version, found
