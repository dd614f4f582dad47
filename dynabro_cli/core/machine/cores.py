"""Number of usable cores, and behaviour of waiting threads."""

from __future__ import annotations

import os
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
SPINNING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
"""OpenMP's variables for the time that a waiting thread stays awake: loop turns for GNU,
milliseconds for LLVM and Intel.
"""


def cores() -> int:
    """Return the number of cores in this process's affinity, within the processor time of its
    control groups (version 2).
    """
    affine = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min([affine, *(int(share) for share in _shares(_group()))]))


def _group() -> str:
    """Return the control group of this process, such as ``/user.slice``."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return "/"
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")


def _shares(group: str) -> list[float]:
    """Yield the limits in cores of ``group`` and the groups above it; groups without a limit are
    skipped.
    """
    folder = GROUPS / group.strip("/")
    shares = []
    for place in (folder, *(parent for parent in folder.parents if parent.is_relative_to(GROUPS))):
        try:
            quota, period = (place / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            shares.append(int(quota) / int(period))
    return shares


def spin_little() -> None:
    """Let OpenMP's waiting threads sleep soon; call this before torch is loaded.

    By default, GNU's OpenMP waits for some milliseconds in a loop. On a busy machine the other
    thread does not run during this time, and small networks need many times the processor time of
    one thread. The user's settings are kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in SPINNING.items():
            os.environ.setdefault(name, value)
