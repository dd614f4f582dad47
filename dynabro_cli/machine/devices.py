"""Devices of runs; without a GPU's driver, their kind is found without torch."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from pathlib import Path

from dynabro_cli.errors import SpecError
from dynabro_cli.lazy import torch

AMD_DRIVER = Path("/dev/kfd")
NVIDIA_DRIVER = "libcuda.so.1"


@functools.cache
def gpu_driver() -> bool:
    """Return True if the driver of an NVIDIA or AMD GPU is installed; without a driver, torch has
    no GPU.
    """
    if AMD_DRIVER.exists():
        return True
    try:
        ctypes.CDLL(NVIDIA_DRIVER)
    except OSError:
        return False
    return True


def devices_of(name: str) -> list[str]:
    """Return the devices that a sweep may use: all GPUs for ``cuda``, and for ``auto`` if any
    exist; otherwise one device.

    Torch is loaded only if a GPU has to be examined.

    Raises:
        SpecError: The device does not exist.
    """
    if name == "cpu" or (name == "auto" and not gpu_driver()) or pick_device(name).type == "cpu":
        return ["cpu"]
    return (
        [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        if name in ("auto", "cuda")
        else [name]
    )


def pick_device(name: str) -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` into an existing device; raise SpecError if it
    does not exist.
    """
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    count = torch.cuda.device_count()
    legal = [
        "auto",
        "cpu",
        *(["cuda"] if count else []),
        *(f"cuda:{index}" for index in range(count)),
    ]
    if name not in legal:
        raise SpecError(
            f"device={name} is not here; legal on this machine: {', '.join(legal)}. Try: "
            "--device auto"
        )
    return torch.device("cuda:0" if name == "cuda" else name)


def gpu_memory(name: str) -> float:
    """Return the bytes of a GPU's memory, in use or not; this takes no memory of the GPU."""
    return float(torch.cuda.get_device_properties(name).total_memory)


def current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a GPU the current one, for streams, graphs and Triton's kernels; do nothing for a
    CPU.
    """
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def spoilt() -> bool:
    """Return True if the next run needs another process, because the capture of a CUDA graph has
    failed in this process.
    """
    graphs = sys.modules.get("dynabro_cli.gradients.graphs")
    return graphs is not None and graphs.KernelCapture.failed > 0
