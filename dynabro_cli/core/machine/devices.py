"""Devices of runs; without a GPU's driver, their kind is found without torch."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from dynabro_cli.core.errors import RunError, SpecError, first_line
from dynabro_cli.core.lazy import torch

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


class Card(NamedTuple):
    """State of a GPU: its compute mode, as a number of CUDA, and its free bytes; None if no process
    can use it now.
    """

    mode: int
    free: int | None


EXCLUSIVE, PROHIBITED = 3, 2
"""Compute modes: one process at a time, and none."""
LOOK_SECONDS = 20.0
LOOK = """
import ctypes, json, sys
cuda = ctypes.CDLL(sys.argv[1])
def result(kind, call, *arguments):
    value = kind()
    return None if call(ctypes.byref(value), *arguments) else value.value or 0
if cuda.cuInit(0):
    sys.exit(1)
cards = []
for index in range(result(ctypes.c_int, cuda.cuDeviceGetCount)):
    device = result(ctypes.c_int, cuda.cuDeviceGet, index)
    mode = result(ctypes.c_int, cuda.cuDeviceGetAttribute, 20, device)
    context = result(ctypes.c_void_p, cuda.cuDevicePrimaryCtxRetain, device)
    free = None
    if context and not cuda.cuCtxSetCurrent(ctypes.c_void_p(context)):
        total = ctypes.c_size_t()
        free = result(ctypes.c_size_t, cuda.cuMemGetInfo_v2, ctypes.byref(total))
    cards.append([mode, free])
print(json.dumps(cards))
"""
"""A program that prints compute mode and free memory of each GPU, in CUDA's order."""


def look(**environment: str) -> list[Card]:
    """Return the state of each GPU; nothing if it is unknown.

    Another process asks, because a process that asks takes memory of each GPU until it ends.
    """
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-c", LOOK, NVIDIA_DRIVER],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | environment,
            timeout=LOOK_SECONDS,
            check=False,
        ).stdout
        return [Card(*card) for card in json.loads(answer)]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []


cards = functools.cache(look)
"""``look`` before this process has started any run."""


def card_of(name: str) -> Card | None:
    """Return the state of a GPU such as ``cuda:0``; None if it is unknown."""
    index = int(name.partition(":")[2] or 0)
    return cards()[index] if index < len(cards()) else None


def obstacle(name: str) -> str | None:
    """Return why no run can be made on a GPU; None if one can."""
    card = card_of(name)
    if card is not None and (card.mode == PROHIBITED or card.free is None):
        busy = "another process holds it, or its memory is full"
        return "its compute mode is Prohibited" if card.mode == PROHIBITED else busy
    major, minor = torch.cuda.get_device_capability(name)
    built = re.findall(r"(sm|compute)_(\d+)(\d)", " ".join(torch.cuda.get_arch_list()))
    # machine code runs on later GPUs of the same generation, and PTX on all later ones
    if not built or any(
        (int(first), int(second)) <= (major, minor) and (kind == "compute" or int(first) == major)
        for kind, first, second in built
    ):
        return None
    return f"this torch has no code for its compute capability {major}.{minor}"


def devices_of(name: str) -> tuple[list[str], list[str]]:
    """Return the devices that a sweep may use: all usable GPUs for ``cuda``, and for ``auto`` if
    any exist; otherwise one device. The second result says in lines which GPUs are not used.

    Torch is loaded only if a GPU has to be examined.

    Raises:
        SpecError: The device does not exist, or no run can be made there.
    """
    if name == "cpu" or (name == "auto" and not gpu_driver()):
        return ["cpu"], []
    if pick_device(name).type == "cpu":
        why = unavailable()
        return ["cpu"], [f"device: cpu (torch cannot use the GPU here: {why})"] if why else []
    every = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    names = every if name in ("auto", "cuda") else [name]
    obstacles = {device: text for device in names if (text := obstacle(device))}
    notes = [
        f"{device} {torch.cuda.get_device_name(device)} is left out: {obstacles[device]}"
        for device in obstacles
    ]
    usable = [device for device in names if device not in obstacles]
    if not usable and name != "auto":
        raise SpecError([*notes, f"device={name}: no GPU can be used. Try: --device cpu"])
    return usable or ["cpu"], notes


def unavailable() -> str:
    """Return why torch finds no GPU although there is a driver; empty if the machine has no GPU, or
    hides it.
    """
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # AssertionError without CUDA, RuntimeError of a driver
        why = first_line(error)
        return "" if "No CUDA GPUs" in why else why
    return ""


def check_computes(device: torch.device) -> None:
    """Raise SpecError if a GPU does not compute, or computes something wrong."""
    why: str = "a sum is wrong"
    try:
        squares = torch.arange(1000, device=device).square().sum()
        if torch.equal(squares, torch.tensor(332_833_500, device=device)):
            return
    except RuntimeError as error:
        why = first_line(error)
    raise SpecError(f"device={device}: this GPU does not compute ({why}). Try: --device cpu")


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
        why = unavailable() if not count and gpu_driver() else ""
        raise SpecError(
            f"device={name} is not here{why and f' ({why})'}; legal on this machine: "
            f"{', '.join(legal)}. Try: --device auto"
        )
    return torch.device("cuda:0" if name == "cuda" else name)


def gpu_memory(name: str) -> float:
    """Return the bytes of a GPU's memory that were free at the start; all if this is unknown."""
    card = card_of(name)
    if card is not None and card.free is not None:
        return float(card.free)
    return float(torch.cuda.get_device_properties(name).total_memory)


def current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a GPU the current one, for streams, graphs and Triton's kernels; do nothing for a
    CPU.
    """
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def on_gpu() -> bool:
    """Return True if this process uses a GPU."""
    return "torch" in sys.modules and bool(sys.modules["torch"].cuda.is_initialized())


def spoilt(device: str) -> bool:
    """Return True if the next run on ``device`` needs another process: the capture of a CUDA graph
    has failed in this process, or an error of the GPU stays.
    """
    graphs = sys.modules.get("dynabro_cli.gradients.graphs")
    if graphs is not None and graphs.KernelCapture.failed > 0:
        return True
    if device == "cpu" or not on_gpu():
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def refuse_spoilt(device: str) -> None:
    """Raise RunError if this process can make no further run on ``device``."""
    if device != "cpu" and spoilt(device):
        raise RunError(
            f"device={device}: this process cannot use the GPU any more after an error. Try: the "
            "same command, which resumes; in a notebook, restart the kernel first"
        )
