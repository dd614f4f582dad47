"""The processes of this machine: which belong to a place, and which to a process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Wait until something holds, for so long; return whether it does."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def of_place(folder: Path) -> list[int]:
    """The processes whose current folder is this one."""
    return [pid for pid in everyone() if cwd(pid) == folder]


def children(pid: int) -> list[int]:
    """The processes that a process has started, from whichever of its threads."""
    try:
        return [
            int(child)
            for path in Path(f"/proc/{pid}/task").glob("*/children")
            for child in path.read_text().split()
        ]
    except OSError:
        return []


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def everyone() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def cwd(pid: int) -> Path | None:
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        return None
