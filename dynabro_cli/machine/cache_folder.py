"""The folder of data sets and compiled code."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Return the platform's folder for caches; without a home that can be written, as in many containers, a temporary folder.

    The folder need not exist. Whoever writes to it creates it.
    """
    with contextlib.suppress(RuntimeError):  # no HOME, and a user without a name
        folder = platformdirs.user_cache_path("dynabro")
        existing = next(place for place in (folder, *folder.parents) if place.exists())
        if folder.is_absolute() and (existing == folder or os.access(existing, os.W_OK)):
            return folder
    return Path(tempfile.gettempdir(), f"dynabro-{os.geteuid()}")
