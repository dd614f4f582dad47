"""The folder of data sets and compiled code, and a lock for folders that several processes fill."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Return the platform's folder for caches; without a home that can be written, as in many
    containers, a temporary folder.

    The folder need not exist. Whoever writes to it creates it.
    """
    with contextlib.suppress(RuntimeError):  # no HOME, and a user without a name
        folder = platformdirs.user_cache_path("dynabro")
        existing = next(place for place in (folder, *folder.parents) if place.exists())
        if folder.is_absolute() and (existing == folder or os.access(existing, os.W_OK)):
            return folder
    return Path(tempfile.gettempdir(), f"dynabro-{os.geteuid()}")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process on this machine works on the same folder; do not wait if the
    folder cannot be locked.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
