"""The file of an SQLite database that is being written: never created again when it is missing,
never confused with another.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import NoReturn

from dynabro_cli.errors import LostDatabaseError
from dynabro_cli.machine.strangers_files import SQLITE_MAGIC
from dynabro_cli.store.open.files import first_bytes


class PinnedFile:
    """Open connections to a file: the first one may create the file, later ones need the same file.

    Otherwise SQLite would replace a database that was removed by an empty one.

    Args:
        path: The file.
        timeout: Seconds that SQLite itself waits for a lock.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._name, self._path, self._timeout = path, Path(os.path.abspath(path)), timeout
        self._known: tuple[int, int] | None = None
        self._filled = False  # until then it is being created, here or by another process

    def connect(self) -> sqlite3.Connection:
        """Open a connection.

        Raises:
            LostDatabaseError: The file does not exist any more, or is another one.
            sqlite3.Error: The file cannot be opened.
        """
        self.check()
        mode = "rwc" if self._known is None else "rw"
        if self._known is None:
            # SQLite itself would let only its owner write, whatever the umask
            with contextlib.suppress(OSError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o666))
        uri = f"{self._path.as_uri()}?mode={mode}"
        try:
            connection = sqlite3.connect(
                uri, uri=True, timeout=self._timeout, check_same_thread=False
            )
        except sqlite3.Error:
            self.check()
            raise
        if self._known is None:
            with contextlib.suppress(OSError):  # the next connection looks again
                self._known = _inode(self._path)
        return connection

    def check(self) -> None:
        """Raise LostDatabaseError if the file does not exist any more, is another one, or has other
        content.
        """
        if self._known is None:
            return
        try:
            same = _inode(self._path) == self._known
            head = first_bytes(self._path) if same else b""
        except FileNotFoundError:
            self._lost(
                "removed or renamed",
                "put it back and repeat the command, or repeat it to create a new database",
            )
        except OSError:  # SQLite itself reports this error
            return
        if not same:
            self._lost(
                "replaced by another file",
                "put it back, or repeat the command to continue with the other file",
            )
        if head == SQLITE_MAGIC:
            self._filled = True
        elif self._filled and not head:
            self._lost(
                "emptied", "restore a backup, or repeat the command to create a new database"
            )
        elif self._filled:
            self._lost("overwritten", "restore a backup, or name another file with --db")

    def _lost(self, what: str, advice: str) -> NoReturn:
        raise LostDatabaseError(
            f"{self._name} was {what} while this command was writing it. Try: {advice}"
        )


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
