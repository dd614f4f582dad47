"""Free memory of this machine, within control groups and limits of the process."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from dynabro_cli.core.machine.macos import system_value

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self")
PAGE = resource.getpagesize()


def free_host_memory() -> int | None:
    """Return the bytes that this process can still use; None if nothing is known.

    The number is the minimum of three: the system's available memory; the rest of each control
    group (version 1 or 2) of the process and the groups above it; and the rest of the limits of
    address space and data (``ulimit -v`` and ``-d``).
    """
    limits = [*_available(), *_free_in_groups(OWN, GROUPS), *_free_of_limits(OWN)]
    return max(0, min(limits)) if limits else None


def private_memory() -> int:
    """Return the bytes of memory that this process uses, without the pages of files; 0 if
    unknown.
    """
    sizes = _statm(OWN)
    return sizes[1] - sizes[2] if len(sizes) > 2 else 0


def _available() -> Iterator[int]:
    """Return Linux's MemAvailable in bytes, and on macOS its share of free memory."""
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
            return
    level = system_value("kern.memorystatus_level") or bytes([100])
    yield os.sysconf("SC_PHYS_PAGES") * PAGE * int.from_bytes(level, "little") // 100


def _free_in_groups(process: Path, groups: Path) -> Iterator[int]:
    """Yield the rest of each control group's limit in bytes; groups without a limit are skipped.

    Args:
        process: The process's folder in ``/proc``.
        groups: The folder where control groups are mounted.
    """
    for line in _lines(process / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, roots = (
                ("memory.max", "memory.current", "inactive_file"),
                (groups, groups / "unified"),
            )
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            roots = (groups / "memory", groups / controllers)
        else:
            continue
        for root in dict.fromkeys(roots):
            # may be missing: a container may see its own group as the root
            folder = root / path.strip("/")
            places = (folder, *(parent for parent in folder.parents if parent.is_relative_to(root)))
            yield from (free for place in places for free in _free_in_group(place, *names))


def _free_in_group(folder: Path, limit: str, used: str, cached: str) -> Iterator[int]:
    """Return the rest of one group's limit; pages of files that can be dropped do not count as
    used.
    """
    numbers = [line for name in (limit, used) for line in _lines(folder / name)[:1]]
    if len(numbers) < 2 or not all(number.isdigit() for number in numbers):
        return  # a group without a limit says "max"
    files = [line.split() for line in _lines(folder / "memory.stat")]
    droppable = sum(int(words[1]) for words in files if len(words) == 2 and words[0] == cached)
    yield int(numbers[0]) - max(0, int(numbers[1]) - droppable)


def _free_of_limits(process: Path) -> Iterator[int]:
    """Yield the rest of the process's own limits, in bytes."""
    pages = _statm(process)
    for kind, used in ((resource.RLIMIT_AS, pages[0:1]), (resource.RLIMIT_DATA, pages[5:6])):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY and used:
            yield limit - used[0]


def _statm(process: Path) -> list[int]:
    """Return sizes of the process in bytes: total, resident, shared, text, library, data."""
    return [int(number) * PAGE for line in _lines(process / "statm") for number in line.split()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
