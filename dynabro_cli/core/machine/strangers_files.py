"""Untrusted files, opened so that their kind, size or links cannot block the program."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading.

    Opening a FIFO would wait for its writer, and a device may be endless: both are refused unread.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The path is not a regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is not a regular file")
    return open(handle, "rb")


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes.

    Raises:
        OSError: The file cannot be read.
        ValueError: The path is not a regular file, or is larger.
    """
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most >> 20} MiB")
    return content


def open_log(path: Path) -> int:
    """Open a run's log for appending; return the descriptor.

    A link is not followed, because the folder may be another user's. A pipe that nobody reads is an
    error, because opening it would wait.

    Raises:
        OSError: The file cannot be written.
    """
    return os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666
    )


def files_under(folder: Path, wanted: Callable[[str], bool]) -> list[str]:
    """Find all files under ``folder`` whose name is ``wanted``, ordered by folder, then by name.

    Links to files and folders are followed. Files and folders whose names begin with a dot do not
    count: other programs write them beside a user's files.

    Raises:
        OSError: A folder cannot be read.
        ValueError: A link leads to a folder that it is in.
    """
    folders: list[tuple[str, list[str]]] = []
    waiting: list[tuple[str, tuple[str, ...]]] = [(str(folder), ())]
    while waiting:
        place, above = waiting.pop()
        real = os.path.realpath(place)
        if real in above:
            raise ValueError(f"{place} is a link to a folder that it is in")
        names = []
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    waiting.append((entry.path, (*above, real)))
                elif wanted(entry.name):
                    names.append(entry.name)
        folders.append((place, sorted(names)))
    return [os.path.join(place, name) for place, names in sorted(folders) for name in names]
