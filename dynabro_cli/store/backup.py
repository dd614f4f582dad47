"""``dynabro db backup``: a copy of a database that others may be writing to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from dynabro_cli.errors import DatabaseError, NotFoundError, SpecError
from dynabro_cli.store.copies import copy_database, new_database
from dynabro_cli.store.engine import file_version, read_only_uri, sqlite_path
from dynabro_cli.store.translation import shown, translated_errors


class Backup(NamedTuple):
    """A copy, and its bytes."""

    path: Path
    size: int


def back_up(database: str, target: Path | None = None, *, force: bool = False) -> Backup:
    """Copy an SQLite database, of any schema version.

    Args:
        database: A path or URL; it is only read.
        target: The file to make, by default beside it, with the time in its name.
        force: Replace a file that is there already, unless it is a database or a sweep.

    Raises:
        SpecError: The database is a server's.
        NotFoundError: There is no such file.
        DatabaseError: It is no dynabro database, or damaged.
        CannotWriteError: The target is there already, or cannot be made; ``StorageError``: the disk is full.
    """
    path = sqlite_path(database)
    if path is None:
        name = shown(database)
        raise SpecError(
            f"{name} is a server's; type pg_dump, or dynabro db merge '{name}' --db FILE to copy it to an SQLite file"
        )
    if not path.exists():
        raise NotFoundError(f"there is no database {path}; name another with --db or DYNABRO_DB")
    if file_version(path) is None:
        raise DatabaseError(f"{path} is an empty database; there is nothing to back up")
    copy = target or path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}.backup")
    output = new_database(copy, database, force=force)
    with translated_errors(database):
        copy_database(read_only_uri(path), output)
    return Backup(copy, copy.stat().st_size)
