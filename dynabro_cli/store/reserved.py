"""Files of a database, which only SQLite and dynabro may write."""

from __future__ import annotations

from pathlib import Path

SQLITE_MAGIC = b"SQLite format 3\x00"
SIDE_SUFFIXES = ("-wal", "-shm", "-journal")
FOLDER_SUFFIX = ".d"


def is_sqlite(path: Path) -> bool:
    """Return True if ``path`` is an SQLite database, or a file that cannot be read and so may be one.

    A file without content is a database as soon as SQLite keeps a log or a journal beside it.
    """
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(len(SQLITE_MAGIC))
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
