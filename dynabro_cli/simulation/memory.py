"""Keeping the pages of large tensors, instead of handing them back to the system at every iteration."""

from __future__ import annotations

import ctypes
import functools
import platform

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


@functools.cache
def keep_pages() -> bool:
    """Tell glibc's malloc to keep freed blocks of up to 1 GiB; return whether it could be told.

    Fresh pages for every temporary cost a third of an iteration's time on a CPU. Other C libraries are left as they are.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30) and libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
