"""Differences between macOS and Linux; on Linux each function does the usual."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import platform
import shutil
import subprocess
from pathlib import Path

LOCAL = 0x1000
"""Flag MNT_LOCAL of a file system."""
STATFS_BYTES, FLAGS, KIND = 2168, slice(64, 68), slice(72, 88)
"""Size of ``struct statfs`` on Apple silicon; places of its f_flags and f_fstypename."""


def on_macos() -> bool:
    """Return True on macOS."""
    return platform.system() == "Darwin"


def system_value(name: str) -> bytes:
    """Return a value of ``sysctl``; empty if it is unknown, or not on macOS."""
    if not on_macos():
        return b""
    value, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), value, ctypes.byref(size), None, 0)
    return b"" if failed else value.raw[: size.value]


def network_kind(path: Path) -> str | None:
    """Return the kind of file system that a file, which need not exist, is on; None if it is local
    or unknown, or not on macOS.
    """
    folder = bytes(Path(os.path.realpath(path)).parent)
    status = ctypes.create_string_buffer(STATFS_BYTES)
    if not on_macos() or ctypes.CDLL(None).statfs(folder, status):
        return None
    local = int.from_bytes(status.raw[FLAGS], "little") & LOCAL
    return None if local else os.fsdecode(status.raw[KIND].split(b"\0")[0])


def sync(path: Path) -> None:
    """Sync a file's content, or a folder's names, to the disk; on macOS, fsync alone reaches the
    drive's cache.

    Raises:
        OSError: The path cannot be written.
    """
    handle, full = os.open(path, os.O_RDONLY), getattr(fcntl, "F_FULLFSYNC", None)
    try:
        if full is not None:
            with contextlib.suppress(OSError):  # a file system without it
                fcntl.fcntl(handle, full)
                return
        os.fsync(handle)
    finally:
        os.close(handle)


@functools.cache
def is_stub(program: str) -> bool:
    """Return True for a developer tool, such as g++ or git, that is not installed: macOS has a stub
    in its place, which opens a dialog and fails.
    """
    if not on_macos() or not (shutil.which(program) or "").startswith("/usr/bin/"):
        return False
    asked = subprocess.run(["/usr/bin/xcode-select", "-p"], capture_output=True, check=False)
    return asked.returncode != 0
