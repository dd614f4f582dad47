"""``dynabro db backup``, and copies of SQLite databases while others may write to them: complete,
or absent.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

from dynabro_cli.core.errors import CannotWriteError, DatabaseError, SpecError
from dynabro_cli.core.machine.failpoints import failpoint
from dynabro_cli.core.machine.macos import sync
from dynabro_cli.runs.store.care.outputs import DATABASE, Output, part_of
from dynabro_cli.runs.store.open.connections import connect_reader
from dynabro_cli.runs.store.open.files import file_version, read_only_uri, sqlite_path
from dynabro_cli.runs.store.open.translation import shown, translated_errors


def new_database(target: Path, database: str, *, force: bool = False) -> Output:
    """Check that a new file can be created for a copy of ``database``.

    Args:
        target: The file to create.
        database: A path or URL.
        force: Replace an existing file, unless it is a database or a sweep.

    Raises:
        CannotWriteError: The target exists already, or its folder is missing.
    """
    if not target.parent.is_dir():
        raise CannotWriteError(
            f"{target}: its folder {target.parent} does not exist. Try: mkdir -p {target.parent}"
        )
    output = Output(target, DATABASE, database, force)
    output.checked_path()
    return output


def copy_database(source: str, output: Output) -> None:
    """Copy the state of a database at one moment to a new file.

    The copy is written under a temporary name, synced to the disk, and then renamed.

    Args:
        source: The database, as a URI of SQLite.
        output: The file to create.

    Raises:
        CannotWriteError: The file exists already, or its folder cannot be written.
        StorageError: The disk is full.
        sqlite3.Error: The database cannot be read.
    """
    part = part_of(output.checked_path())
    try:
        with output.errors():
            with contextlib.closing(connect_reader(source)) as connection:
                connection.execute("VACUUM INTO ?", (str(part),))
            failpoint("before-copy")
            sync(part)
            output.publish(part)
    finally:
        for remains in (part, part.with_name(part.name + "-journal")):
            with contextlib.suppress(OSError):
                remains.unlink()


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
        CannotWriteError: The target exists already, or cannot be created. StorageError: The disk is
            full.
    """
    path = sqlite_path(database)
    if path is None:
        name = shown(database)
        raise SpecError(
            f"{name} is a server's. Try: pg_dump, or dynabro db merge '{name}' --db FILE, "
            "which copies it to an SQLite file"
        )
    if file_version(path) is None:
        raise DatabaseError(f"{path} is an empty database; there is nothing to back up")
    copy = target or path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}.backup")
    output = new_database(copy, database, force=force)
    with translated_errors(database):
        copy_database(read_only_uri(path), output)
    return Backup(copy, copy.stat().st_size)
