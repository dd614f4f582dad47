"""``dynabro db backup``: copy a database while others may write to it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from dynabro_cli.errors import DatabaseError, SpecError
from dynabro_cli.store.copies import copy_database, new_database
from dynabro_cli.store.database_files import file_version, read_only_uri, sqlite_path
from dynabro_cli.store.translation import shown, translated_errors


class Backup(NamedTuple):
    """A copy and its size in bytes."""

    path: Path
    size: int


def back_up(database: str, target: Path | None = None, *, force: bool = False) -> Backup:
    """Copy an SQLite database, of any schema version.

    Args:
        database: A path or URL; it is only read.
        target: The file to create; by default beside the database, with the time in its name.
        force: Replace an existing file, unless it is a database or a sweep.

    Raises:
        SpecError: The database is on a server.
        NotFoundError: There is no such file.
        DatabaseError: The file is not a dynabro database, or is damaged.
        CannotWriteError: The target exists already, or cannot be created. StorageError: The disk is full.
    """
    path = sqlite_path(database)
    if path is None:
        name = shown(database)
        raise SpecError(
            f"{name} is a server's. Try: pg_dump, or dynabro db merge '{name}' --db FILE, which copies it to an SQLite file"
        )
    if file_version(path) is None:
        raise DatabaseError(f"{path} is an empty database; there is nothing to back up")
    copy = target or path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}.backup")
    output = new_database(copy, database, force=force)
    with translated_errors(database):
        copy_database(read_only_uri(path), output)
    return Backup(copy, copy.stat().st_size)
