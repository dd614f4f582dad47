"""Cache of the files whose runs were all found readable, as to look at 20,000 runs takes a quarter of a second."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

import platformdirs

from dynabro_cli.store.tables import runs
from dynabro_cli.store.value_types import readable_row

FileState = list[list[int]]
"""Of a database's file: device, inode, size, and times of change of content and status; then of its write-ahead log, if that
is not empty: inode, size, and time of change of content, as SQLite changes its status whenever it is opened."""
RECENT_SECONDS = 2
"""A file that changed so lately is not remembered: a file system's clock may give a second change the same time."""


def state_of(path: Path) -> FileState:
    """Return the state of a database's files, which changes whenever one of them is written or replaced."""
    state = []
    with contextlib.suppress(OSError):
        found = path.stat()
        state.append([found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns])
        log = path.with_name(f"{path.name}-wal").stat()
        if log.st_size:
            state.append([log.st_ino, log.st_size, log.st_mtime_ns])
    return state


def known_readable(path: Path, state: FileState) -> bool:
    """Return True if all runs of the file were readable when it was in this state."""
    with contextlib.suppress(OSError, ValueError):
        return bool(json.loads(_place(path).read_text(encoding="utf-8")) == state)
    return False


def remember_readable(path: Path, state: FileState) -> None:
    """Note that all runs of the file are readable, unless it is being written, or the cache cannot be."""
    if len(state) != 1 or time.time_ns() - max(state[0][3:]) < RECENT_SECONDS * 10**9:
        return
    place = _place(path)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f"{place.name}.{os.getpid()}")
        beside.write_text(json.dumps(state), encoding="utf-8")
        beside.replace(place)


def _place(path: Path) -> Path:
    """Return the file of the cache for a database; another one for other conditions on what is readable."""
    name = hashlib.sha256(f"{path.absolute()}\n{readable_row(runs)}".encode()).hexdigest()
    return platformdirs.user_cache_path("dynabro") / "readable" / name[:32]
