"""Files of a database, which only SQLite and dynabro may write."""

from __future__ import annotations

import os
import threading
from pathlib import Path

SQLITE_MAGIC = b"SQLite format 3\x00"
SIDE_SUFFIXES = ("-wal", "-shm", "-journal")
FOLDER_SUFFIX = ".d"
MOST_KEPT = 256

_kept: dict[tuple[int, int], int] = {}
_lock = threading.Lock()


def first_bytes(path: Path) -> bytes:
    """Return the first 16 bytes of a file, which this process may have open as an SQLite database.

    When a process closes any descriptor of a file, the system drops all its locks on the file, SQLite's among them: another
    process could then remove the log that this one writes to (SQLite's "How To Corrupt", 2.2). So the descriptors of databases,
    and of empty files, which may become one, stay open; the oldest of more than ``MOST_KEPT`` is closed.

    Raises:
        OSError: The file cannot be read.
    """
    status = path.stat()
    with _lock:
        known = _kept.get((status.st_dev, status.st_ino))
        if known is not None:
            return os.pread(known, len(SQLITE_MAGIC), 0)
        descriptor = os.open(path, os.O_RDONLY)
        found = os.fstat(descriptor)
        head = os.pread(descriptor, len(SQLITE_MAGIC), 0)
        if head not in (b"", SQLITE_MAGIC):
            os.close(descriptor)
            return head
        _kept[found.st_dev, found.st_ino] = descriptor
        if len(_kept) > MOST_KEPT:
            os.close(_kept.pop(next(iter(_kept))))
        return head


def is_sqlite(path: Path) -> bool:
    """Return True if ``path`` is an SQLite database, or a file that cannot be read and so may be one.

    A file without content is a database as soon as SQLite keeps a log or a journal beside it.
    """
    if not path.is_file():
        return False
    try:
        head = first_bytes(path)
    except OSError:
        return True
    return head == SQLITE_MAGIC or any(path.with_name(path.name + suffix).exists() for suffix in SIDE_SUFFIXES)


def owner(path: Path) -> Path | None:
    """Return the database that ``path`` belongs to, as a log or journal of SQLite, or by its folder; None if there is none.

    Args:
        path: An absolute path without symbolic links; it need not exist.
    """
    if path.name:
        for suffix in SIDE_SUFFIXES:
            base = _without(path, suffix)
            if base is not None and (is_sqlite(base) or _is_empty(base)):
                return base
    for place in (path, *path.parents):
        base = _without(place, FOLDER_SUFFIX)
        if base is not None and is_sqlite(base):
            return base
    return None


def _without(path: Path, suffix: str) -> Path | None:
    """Return ``path`` without a suffix, in either case, as some file systems ignore case; None if it has another suffix."""
    name = path.name[: -len(suffix)]
    return path.with_name(name) if name and path.name.lower().endswith(suffix) else None


def _is_empty(path: Path) -> bool:
    """Return True for an empty file, which SQLite makes first of a new database."""
    return path.is_file() and not path.stat().st_size
