"""How many cores this process may use, and how its threads wait for one another."""

from __future__ import annotations

import os
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
SPINNING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
"""OpenMP's variables for how long a thread that waits stays awake: GNU's turns of a loop, LLVM's and Intel's milliseconds."""


def cores() -> int:
    """Cores within this process's affinity, and within the processor time that its control groups (version 2) grant it."""
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affine, *(int(share) for share in _shares(_group()))]))


def _group() -> str:
    """The control group of this process, such as ``/user.slice``."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return "/"
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")


def _shares(group: str) -> list[float]:
    """What ``group`` and those above it may use at most, in cores; those without a limit are left out."""
    folder = GROUPS / group.strip("/")
    found = []
    for place in (folder, *(parent for parent in folder.parents if parent.is_relative_to(GROUPS))):
        try:
            quota, period = (place / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            found.append(int(quota) / int(period))
    return found


def spin_little() -> None:
    """Have OpenMP's threads sleep soon when they wait; to be called before torch is loaded.

    By default, GNU's OpenMP waits for some milliseconds in a loop. On a machine that has other work, the thread that is waited
    for does not run in that time, and small networks need many times the processor time of one thread. What the user has set
    counts.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in SPINNING.items():
            os.environ.setdefault(name, value)
