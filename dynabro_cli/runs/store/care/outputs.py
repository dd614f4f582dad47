"""Files that commands write: under a temporary name, then renamed. Databases and inputs are never
replaced.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dynabro_cli.core.errors import CannotWriteError, StorageError
from dynabro_cli.core.machine.macos import sync
from dynabro_cli.runs.store.open.files import is_sqlite, sqlite_path
from dynabro_cli.runs.store.open.translation import NO_ROOM, reason_of
from dynabro_cli.runs.store.ownership import new_owner, presumed_dead

DISK_ERRORS = (*NO_ROOM, errno.EIO)
A_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class FileKind:
    """A kind of file that commands write.

    Attributes:
        name: Name in messages, such as ``a CSV file``.
        replaces: Given a file that is not empty, True if a new file of this kind may replace it
            without ``force``.
    """

    name: str
    replaces: Callable[[Path], bool]

    @classmethod
    def ending(cls, name: str, suffix: str) -> FileKind:
        """Return a kind that replaces the files whose names end with ``suffix``."""
        return cls(name, lambda path: path.suffix.lower() == suffix)


CSV = FileKind.ending("a CSV file", ".csv")
DATABASE = FileKind("a database", lambda path: False)
PARQUET = FileKind.ending("a Parquet file", ".parquet")
HTML = FileKind.ending("an HTML file", ".html")
PICTURES = {
    "png": FileKind.ending("a PNG picture", ".png"),
    "pdf": FileKind.ending("a PDF file", ".pdf"),
    "svg": FileKind.ending("an SVG picture", ".svg"),
    "tex": FileKind.ending("a LaTeX table", ".tex"),
}


@dataclass(frozen=True)
class Output:
    """A file to write, with what it must not replace.

    Attributes:
        target: The file, as the user names it.
        kind: The kind of file that is written.
        database: The database that the command reads, which is never replaced.
        force: Replace a file of another kind, too.
        source: Another file that the command reads, and that it does not replace; it need not
            exist.
    """

    target: Path
    kind: FileKind
    database: str
    force: bool = False
    source: Path | None = None

    @property
    def is_stream(self) -> bool:
        """True for a device or a pipe, which cannot be replaced or read again."""
        return self.target.is_char_device() or self.target.is_fifo()

    def checked_path(self) -> Path:
        """Return where the file goes: ``target`` with symbolic links followed.

        Raises:
            CannotWriteError: What is there must not be replaced, or cannot be.
        """
        if self.kind is DATABASE and not self.force and os.path.lexists(self.target):
            raise CannotWriteError(f"{self.target} is there already. Try: another file")
        with self.errors():
            try:
                path = self.target.resolve()
                if path.is_symlink():  # Python 3.13 does not raise
                    raise ValueError("a circle of links")
            # a circle of links, or a name that no file can have
            except (RuntimeError, ValueError) as error:
                raise CannotWriteError(
                    f"{self.target} cannot be written ({error}). Try: another file"
                ) from error
            if path.exists() and not path.is_file():
                raise CannotWriteError(f"{self.target} is not a regular file. Try: another file")
            if path.is_file() and not os.access(path, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            # the own database first: it may be open, and then nothing else may look into the file
            database = sqlite_path(self.database)
            if (database is not None and _same(database, path)) or is_sqlite(path):
                raise CannotWriteError(
                    f"{self.target} is a database and is never overwritten. Try: another file"
                )
            if self.source is not None and _same(self.source, path):
                raise CannotWriteError(
                    f"{self.target} is an input of this command and is never overwritten. Try: "
                    "another file"
                )
            kept = path.exists() and path.stat().st_size > 0 and not self.force
            if kept and not self.kind.replaces(path):
                raise CannotWriteError(
                    f"{self.target} is there already, and is not {self.kind.name}. Try: another "
                    "file, or --force, which replaces it"
                )
        return path

    @contextlib.contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        """Open a temporary file, which gets the file's name when the block ends without an error,
        and is removed otherwise.

        A device or a pipe is written as it is.

        Raises:
            CannotWriteError: What is there must not be replaced, or cannot be.
            StorageError: The disk is full.
        """
        with self.errors():
            if self.is_stream:
                with self.target.open("wb") as stream:
                    yield stream
                return
            part = part_of(self.checked_path())
            try:
                with part.open("xb") as file:
                    yield file
                sync(part)
                self.publish(part)
            finally:
                part.unlink(missing_ok=True)

    def publish(self, part: Path) -> None:
        """Give a finished temporary file its name, after another check of what it replaces.

        Raises:
            CannotWriteError: What is there must not be replaced.
            OSError: The folder cannot be written.
        """
        # another program may have made a file of this name since the first check
        path = self.checked_path()
        with contextlib.suppress(OSError):  # the file is new, or the file system has no permissions
            part.chmod(stat.S_IMODE(path.stat().st_mode))
        part.replace(path)
        sync(path.parent)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the file system, and of SQLite that writes there, into errors that name
        the file.
        """
        try:
            yield
        except BrokenPipeError:  # the reader of a pipe has closed it, which is not an error
            raise
        except (OSError, sqlite3.OperationalError) as error:
            reason = getattr(error, "strerror", None) or reason_of(error, self.target)
            problem = f"{self.target} cannot be written ({reason})"
            if "disk" in reason or getattr(error, "errno", None) in DISK_ERRORS:
                raise StorageError(f"{problem}. Try: make room, or another file") from error
            closed = "unable to open" in reason or "readonly" in reason
            if closed or isinstance(error, OSError):
                raise CannotWriteError(f"{problem}. Try: another file") from error
            raise


def part_of(path: Path) -> Path:
    """Return a name beside ``path``, which no other process uses, for a file or a folder that is
    not finished; remove the parts of killed processes.

    The name has the process, without colons, which some file systems refuse. A part of a process
    that cannot be seen from here is removed a day after its last change.
    """
    for part in path.parent.glob(".dynabro.*.part*"):
        with contextlib.suppress(OSError):
            row = {
                "owner": part.name.split(".")[2].replace("-", ":"),
                "heartbeat_at": dt.datetime.fromtimestamp(part.lstat().st_mtime) + A_DAY,
                "heartbeat_clock": None,
            }
            if presumed_dead(row, dt.datetime.now()):
                shutil.rmtree(part, ignore_errors=True)
                part.unlink(missing_ok=True)
    return path.with_name(f".dynabro.{new_owner().replace(':', '-')}.part")


def _same(file: Path, path: Path) -> bool:
    """Return True if two names are of one file, which need not exist."""
    return file.resolve() == path or (file.exists() and path.exists() and path.samefile(file))
