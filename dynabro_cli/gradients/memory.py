"""Memory: free bytes, transfers to a device, and keeping the pages of large tensors between
iterations.
"""

from __future__ import annotations

import ctypes
import functools
import platform

import torch

from dynabro_cli.core.machine.host_memory import free_host_memory

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


@functools.cache
def keep_pages() -> bool:
    """Tell glibc's malloc to keep freed blocks of up to 1 GiB; return True if it accepted.

    Fresh pages for every temporary cost a third of an iteration's time on a CPU. Other C libraries
    are not changed.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30) and libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    )


def send(
    tensor: torch.Tensor, device: torch.device, place: torch.Tensor | None = None
) -> torch.Tensor:
    """Copy a small tensor from the host to ``device``, without waiting for the device's
    computations; into ``place`` if it is given.

    Pinned memory is used again only after it has been copied: torch's allocator sees to this.
    """
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    if place is None:
        return pinned.to(device, non_blocking=device.type == "cuda")
    return place.copy_(pinned, non_blocking=True)


def free_memory(device: torch.device) -> int:
    """Return the free bytes on ``device``; if unknown, 2 GiB."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = free_host_memory()
    return 2 << 30 if free is None else free
