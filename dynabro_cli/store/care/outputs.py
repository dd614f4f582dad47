"""Files that commands write: under a temporary name, then renamed. Databases and their files are
never replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sqlite3
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dynabro_cli.errors import CannotWriteError, StorageError
from dynabro_cli.store.open.files import (
    SIDE_SUFFIXES,
    is_sqlite,
    owner,
    refuse_side_names,
    sqlite_path,
)
from dynabro_cli.store.side_files import SideFiles, sync

HALF_WAY = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
MOST_LINKS = 40


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
        database: The database that the command reads; its files are never replaced.
        force: Replace a file of another kind, too.
        source: Another file that the command reads, and that it does not replace; it need not
            exist.
    """

    target: Path
    kind: FileKind
    database: str
    force: bool = False
    source: Path | None = None

    def place(self) -> Path:
        """Return where the file goes: ``target`` with symbolic links followed.

        Raises:
            CannotWriteError: What is there must not be replaced, or cannot be.
        """
        if self.kind is DATABASE and not self.force and os.path.lexists(self.target):
            raise CannotWriteError(f"{self.target} is there already. Try: another file")
        with self.errors():
            try:
                path = self.target.resolve()
            # a circle of links, or a name that no file can have
            except (RuntimeError, ValueError) as error:
                raise CannotWriteError(
                    f"{self.target} cannot be written ({error}). Try: another file"
                ) from error
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if path.is_file() and not os.access(path, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            self._refuse_reserved(path)
            if os.path.lexists(path):
                self._refuse_precious(path)
        return path

    @contextlib.contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        """Open a temporary file, which gets the file's name when the block ends without an error,
        and is removed otherwise.

        A device, a pipe, or an open file such as ``/dev/stdout`` is written as it is.

        Raises:
            CannotWriteError: What is there must not be replaced, or cannot be.
            StorageError: The disk is full.
        """
        stream = self._stream()
        if stream is not None:
            with self.errors(), stream:
                yield stream
            return
        part = part_of(self.place())
        try:
            with self.errors():
                with part.open("xb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                self.publish(part)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()

    def publish(self, part: Path) -> None:
        """Give a finished temporary file its name, after another check of what it replaces.

        Raises:
            CannotWriteError: What is there must not be replaced.
            OSError: The folder cannot be written.
        """
        path = self.place()
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
        except sqlite3.OperationalError as error:
            problem = f"{self.target} cannot be written ({error})"
            if "disk" in str(error):
                raise StorageError(f"{problem}. Try: make room, or another file") from error
            if "unable to open" in str(error) or "readonly" in str(error):
                raise CannotWriteError(f"{problem}. Try: another file") from error
            raise
        except OSError as error:
            problem = f"{self.target} cannot be written ({error.strerror})"
            if error.errno in HALF_WAY:
                raise StorageError(f"{problem}. Try: make room, or another file") from error
            raise CannotWriteError(f"{problem}. Try: another file") from error

    def _refuse_reserved(self, path: Path) -> None:
        """Refuse the place of a database, of a file that belongs to one, and of checkpoints and
        logs.
        """
        own = sqlite_path(self.database)
        if is_sqlite(path) or (own is not None and own.resolve() == path):
            raise CannotWriteError(
                f"{self.target} is a database and is never overwritten. Try: another file"
            )
        database = owner(path)
        if database is not None:
            raise CannotWriteError(
                f"{self.target} belongs to the database {database}. Try: another file"
            )
        if self.kind is DATABASE:
            refuse_side_names(path)
        for side in (
            path.with_name(path.name + suffix) for suffix in SIDE_SUFFIXES if self.kind is DATABASE
        ):
            if side.exists():  # SQLite would read it as a part of the new database
                raise CannotWriteError(
                    f"{side} was left behind by another database. Try: another file, or move "
                    "it away"
                )
        folder = SideFiles.of(self.database).folder.resolve()
        for kept in (folder / "checkpoints", folder / "logs"):
            if path == kept or kept in path.parents:
                raise CannotWriteError(
                    f"{self.target} is where dynabro keeps checkpoints and logs. Try: another file"
                )

    def _refuse_precious(self, path: Path) -> None:
        """Refuse a file that is there already, unless it is of the same kind, or is to be
        replaced.
        """
        if not path.is_file():
            raise CannotWriteError(f"{self.target} is not a regular file. Try: another file")
        if self.source is not None and self.source.exists() and path.samefile(self.source):
            raise CannotWriteError(
                f"{self.target} is an input of this command and is never overwritten. Try: "
                "another file"
            )
        if path.stat().st_size and not self.force and not self.kind.replaces(path):
            raise CannotWriteError(
                f"{self.target} is there already, and is not {self.kind.name}. Try: another "
                "file, or --force, which replaces it"
            )

    def _stream(self) -> BinaryIO | None:
        """Open a target that is not a regular file and cannot be replaced; None for all others."""
        with self.errors():
            descriptor = _descriptor(self.target)
            if descriptor is not None:
                if is_sqlite(Path(self.target)):
                    raise CannotWriteError(
                        f"{self.target} is a database and is never overwritten. Try: another file"
                    )
                return os.fdopen(os.dup(descriptor), "wb")
            # ``place`` reports a wrong name
            with contextlib.suppress(FileNotFoundError, ValueError):
                if _is_stream(self.target.stat().st_mode):
                    file = os.fdopen(os.open(self.target, os.O_WRONLY), "wb")
                    if _is_stream(os.fstat(file.fileno()).st_mode):
                        return file
                    file.close()
        return None


def part_of(path: Path) -> Path:
    """Return a name beside ``path``, which no other process uses, for a file that is not
    finished.
    """
    return path.with_name(f".dynabro.{secrets.token_hex(8)}.part")


def _is_stream(mode: int) -> bool:
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _descriptor(path: Path) -> int | None:
    """The number of the open file of this process that a path such as ``/dev/stdout`` or
    ``/dev/fd/3`` stands for, or None.
    """
    for _ in range(MOST_LINKS):
        folder = os.path.realpath(path.parent)
        if folder in ("/dev/fd", f"/proc/{os.getpid()}/fd") and path.name.isdigit():
            return int(path.name)
        if not path.is_symlink():
            break
        path = Path(folder) / path.readlink()
    return None
