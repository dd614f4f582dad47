"""Make a file, or a name in a folder, survive a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Sync a file's content, or a folder's names, to the disk.

    Raises:
        OSError: The path cannot be written.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
