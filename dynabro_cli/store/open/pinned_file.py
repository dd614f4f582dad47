"""The file of an SQLite database that is being written: never created again when it is missing,
never confused with another.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from dynabro_cli.errors import LostDatabaseError


class PinnedFile:
    """Open connections to a file: the first one may create the file, later ones need the same file.

    Otherwise SQLite would replace a database that was removed by an empty one.

    Args:
        path: The file.
        timeout: Seconds that SQLite itself waits for a lock.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._name, self._path, self._timeout = path, Path(os.path.abspath(path)), timeout
        self._inode: tuple[int, int] | None = None  # known from the first connection on

    def connect(self) -> sqlite3.Connection:
        """Open a connection.

        Raises:
            LostDatabaseError: The file does not exist any more, or is another one.
            sqlite3.Error: The file cannot be opened.
        """
        self.check()
        mode = "rwc" if self._inode is None else "rw"
        if self._inode is None:
            # SQLite itself would let only its owner write, whatever the umask
            with contextlib.suppress(OSError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o666))
        uri = f"{self._path.as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=self._timeout, check_same_thread=False)
        if self._inode is None:
            self._inode = _inode(self._path)
        return connection

    def check(self) -> None:
        """Raise LostDatabaseError if the file does not exist any more, or is another one."""
        if self._inode is not None and _inode(self._path) != self._inode:
            raise LostDatabaseError(
                f"{self._name} was removed or replaced while this command was writing it. Try: "
                "put it back, and repeat the command"
            )


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
