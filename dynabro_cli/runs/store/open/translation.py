"""Translate errors of databases and drivers; print names of databases without passwords."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError

from dynabro_cli.core.errors import (
    BusyError,
    CannotWriteError,
    DatabaseError,
    DisconnectedError,
    DynabroError,
    NotFoundError,
    SpecError,
    StorageError,
    first_line,
)
from dynabro_cli.core.machine.settings import seconds_setting

AGAIN = "what was stored before is intact; repeat the command when the server is there"
NO_CONNECTION = (
    "connection failed",
    "connection is bad",
    "could not connect",
    "connection timeout expired",
)
"""Messages of drivers that have opened no connection."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk, after which nothing else can be stored; any other error concerns the
folder only.
"""
READ_ONLY = "25006"
"""SQLSTATE of a server that only reads, as during a failover."""
FOR_NOW = (
    "starting up",
    "shutting down",
    "too many clients",
    "connection slots",
    "too many connections",
)
"""Messages of a server that temporarily accepts no connection."""


REACHED = set[str]()
"""Servers' databases that this process has reached. If another one cannot be reached, its name may
be wrong; if one of these cannot, it is an outage.
"""


def busy_seconds() -> float:
    """Return the seconds to wait for another program's lock on the database:
    ``DYNABRO_BUSY_SECONDS``.
    """
    return seconds_setting("DYNABRO_BUSY_SECONDS")


def shown(database: str | URL) -> str:
    """Return ``database`` in a printable form: without a password; for a file, the path alone."""
    if isinstance(database, str) and "://" not in database:
        return database
    if (
        isinstance(database, str)
        and (rest := database.partition("://")[2].partition("?")[0]).count("@") > 1
    ):
        # which @ ends the password is not known
        return f"{database.partition('://')[0]}://***@{rest.rpartition('@')[2]}"
    url = make_url(database)
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    # libpq accepts a password there, too
    passwords = [name for name in url.query if "password" in name]
    return url.difference_update_query(passwords).render_as_string(hide_password=True)


def not_writable(path: Path) -> str:
    """Return ``; FILE belongs to USER ...`` if this user cannot write a file of an SQLite database
    or its folder.
    """
    files = (
        path,
        path.with_name(f"{path.name}-wal"),
        path.with_name(f"{path.name}-shm"),
        path.parent,
    )
    closed = [file for file in files if file.exists() and not os.access(file, os.W_OK)]
    if not closed:
        return ""
    try:
        user = closed[0].owner()
    except KeyError:
        user = f"user {closed[0].stat().st_uid}"
    return (
        f"; {closed[0]} belongs to {user}, who can type: chmod a+w {shlex.join(map(str, closed))}"
    )


@contextlib.contextmanager
def translated_errors(database: str | URL) -> Iterator[None]:
    """Turn errors of drivers into errors that say what to do; ``database`` is as the user named
    it.
    """
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        raise translate(error, shown(database)) from error
    except DynabroError:  # some of them are ValueErrors
        raise
    except UnicodeEncodeError as error:
        raise SpecError(
            f"{error.object!r}: Python does not read it as UTF-8, and a database stores nothing "
            "else. Try: another name; if it is UTF-8, PYTHONUTF8=1"
        ) from error
    except ValueError as error:  # a text that is not a time, in a column of times
        name = shown(database)
        raise DatabaseError(
            f"{name}: a value cannot be read ({error}). Try: dynabro db check --db {name}"
        ) from error


def translate(error: DBAPIError | sqlite3.Error, database: str) -> DynabroError:
    """Return the error of this package for an error of a driver."""
    if isinstance(error, DBAPIError):
        translated = _server_error(error, database)
        if translated is not None:
            return translated
    reason = reason_of(getattr(error, "orig", error), Path(database))
    if "disk is full" in reason or "disk I/O" in reason:
        return StorageError(f"{database}: {reason}; make room; what was stored before is intact")
    if "not a database" in reason:
        return DatabaseError(f"{database} is not a dynabro database. Try: another --db")
    if "image is malformed" in reason:
        return DatabaseError(
            f"{database} is damaged ({reason}). Try: restore a backup, or another --db"
        )
    if "locked" in reason or "busy" in reason:
        return BusyError(
            f"{database} was locked by another program for {busy_seconds():g} s; end that "
            "program, then repeat the command"
        )
    if "unable to open" in reason or "readonly" in reason:
        return CannotWriteError(
            f"{database} cannot be created or written ({reason}{not_writable(Path(database))}). "
            "Try: --db with a file in a folder that you can write"
        )
    return DatabaseError(f"{database}: {reason.strip().splitlines()[0]}")


def reason_of(error: BaseException | None, path: Path) -> str:
    """Return the reason of a driver's error; if SQLite cannot open ``path``, or a file beside it,
    because the disk has no room for another file, say so.
    """
    reason = str(error)
    if "unable to open" in reason:
        try:
            tempfile.TemporaryFile(dir=path.parent).close()
        except OSError as problem:
            if problem.errno in NO_ROOM:
                return f"disk is full, or has no inode ({problem.strerror})"
    return reason


def _server_error(error: DBAPIError, database: str) -> DynabroError | None:
    """Return the error of this package for a driver's error, by its SQLSTATE code; None for an
    unknown code.
    """
    code = getattr(error.orig, "sqlstate", None) or ""
    reason = first_line(error.orig)
    if any(words in reason for words in NO_CONNECTION):
        if database not in REACHED and not any(words in reason for words in FOR_NOW):
            return NotFoundError(
                f"{database} cannot be reached: {reason}; start the server, create the "
                "database, or correct --db"
            )
        return DisconnectedError(f"{database} cannot be reached for now: {reason}; {AGAIN}")
    if code == "53100":
        return StorageError(f"{database}: {reason}; make room; what was stored before is intact")
    # deadlocks, a busy server, interventions, a server that is replaced by another
    if error.connection_invalidated or code.startswith(("40", "53", "57", READ_ONLY)):
        return DisconnectedError(f"{database}: {reason}; {AGAIN}")
    if code == "55P03":
        return BusyError(
            f"{database} was locked by another program for {busy_seconds():g} s; end that "
            "program, then repeat the command"
        )
    if code == "42501":
        return CannotWriteError(
            f"{database}: {reason}. Try: ask its owner for rights, or another --db"
        )
    return None
