"""Memory: free bytes, transfers to a device, and keeping the pages of large tensors between
iterations.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Callable

import numpy as np
import torch

from dynabro_cli.machine.host_memory import free_host_memory

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


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a small tensor from the host to ``device``, without waiting for the device's
    computations.
    """
    return (
        tensor.pin_memory().to(device, non_blocking=True)
        if device.type == "cuda"
        else tensor.to(device)
    )


def send_once(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor of a few values that later rounds need again; a GPU keeps its copy, which must
    not be changed.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return kept(tensor.numpy().tobytes(), tensor.dtype, tuple(tensor.shape), device)


@functools.lru_cache(maxsize=1024)
def kept(
    values: bytes, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    """Send a tensor of these bytes, and keep it."""
    return send(torch.frombuffer(bytearray(values), dtype=dtype).view(shape), device)


class Ahead:
    """Arrays of single rounds on a GPU, sent for many rounds at once.

    Args:
        device: The GPU.
        rounds: The number of rounds that are sent at once.
    """

    def __init__(self, device: torch.device, rounds: int = 256) -> None:
        self._device, self._rounds = device, rounds
        self._sent: dict[str, tuple[int, torch.Tensor]] = {}

    def of(self, name: str, round_: int, draw: Callable[[int], np.ndarray]) -> torch.Tensor:
        """Return ``draw(round_)``, which must depend only on the round."""
        place = round_ % self._rounds
        first, block = self._sent.get(name, (None, None))
        if block is None or first != round_ - place:
            arrays = [draw(later) for later in range(round_ - place, round_ - place + self._rounds)]
            block = send(torch.from_numpy(np.stack(arrays)), self._device)
            self._sent[name] = round_ - place, block
        return block[place]


def free_memory(device: torch.device) -> int:
    """Return the free bytes on ``device``; if unknown, 2 GiB."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = free_host_memory()
    return 2 << 30 if free is None else free
