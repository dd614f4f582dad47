"""Common parts of the benchmarks: a line about the machine, calls timed in turn, and a table."""

from __future__ import annotations

import ctypes
import datetime as dt
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from dynabro_cli.core.errors import SpecError, did_you_mean
from dynabro_cli.core.machine.native import Kernel, NativeError, cpu_name


def machine(device: str = "cpu", threads: int | None = None) -> str:
    """Describe the machine of a result: processor, cores, threads of a process, torch's version and
    the date.
    """
    threads = threads or torch.get_num_threads()
    parts = [cpu_name(), f"{cores()} cores", f"threads: {threads}", f"torch {torch.__version__}"]
    rate = peak()
    if rate is not None:
        parts.insert(1, f"{rate / 1e9:.0f} GFLOP/s a core")
    if device != "cpu":
        parts.insert(0, torch.cuda.get_device_name(device))
    return ", ".join([*parts, dt.date.today().isoformat()])


def peak(seconds: float = 0.2) -> float | None:
    """Return one core's floating-point operations per second in a loop of fused multiply-adds; None
    without a C++ compiler.

    The best of many short stretches within ``seconds`` counts, because other processes disturb it
    least.
    """
    try:
        library = Kernel(Path(__file__).with_name("peak.cpp"), {}).load()
    except NativeError:
        return None
    library.operations.restype = ctypes.c_double
    values, best, end = (ctypes.c_float * 4)(0.5, 1.0, 1.0, 0.0), 0.0, time.process_time() + seconds
    while time.process_time() < end:
        before = time.process_time()
        done = library.operations(ctypes.c_long(1_000_000), values)
        best = max(best, done / (time.process_time() - before))
    return best


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table with aligned columns: the first to the left, all others to the
    right.
    """
    cells = [list(header), *([_shown(cell) for cell in row] for row in rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [
        " | ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in (cells[0], rule, *cells[1:])
    ]
    return "\n".join(f"| {line} |" for line in lines)


def _shown(cell: object) -> str:
    """Return a number with three significant digits, text unchanged, and ``-`` for None."""
    if cell is None:
        return "-"
    if not isinstance(cell, float):
        return str(cell)
    return (
        f"{cell:.2e}"
        if cell and not 1e-3 <= abs(cell) < 1e6
        else f"{cell:.0f}"
        if abs(cell) >= 100
        else f"{cell:.3g}"
    )


def synchronise(device: torch.device | str) -> None:
    """Wait for a GPU; do nothing for a CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def in_turn(
    calls: Mapping[str, Callable[[], object]],
    repeats: int,
    device: torch.device | str = "cpu",
    *,
    least: bool = False,
) -> dict[str, float]:
    """Call each of ``calls`` once to warm up, then all in turn, ``repeats`` times, in another order
    each time, because a call finds in the cache what the one before it has left there. Return the
    median seconds of each, or with ``least`` the least CPU time, which other processes disturb
    less.
    """
    orders = random.Random(0)
    clock, pick = (time.process_time, min) if least else (time.perf_counter, statistics.median)
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in orders.sample([*calls.items()], len(calls)):
            synchronise(device)
            before = clock()
            call()
            synchronise(device)
            seconds[name].append(clock() - before)
    return {name: pick(times) for name, times in seconds.items()}


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the least, the median and the largest of ``values``."""
    return min(values), statistics.median(values), max(values)


def chosen(names: Sequence[str] | None, known: Sequence[str], kind: str) -> list[str]:
    """Return ``names``, or all ``known`` names if None; raise SpecError for an unknown name."""
    for name in names or []:
        if name not in known:
            raise SpecError(
                f"no {kind} {name!r}{did_you_mean(name, known)}; legal: {', '.join(known)}"
            )
    return list(names or known)


def ratio(one: float | None, other: float | None) -> float | None:
    """Return ``one / other``, or None if one of them was not measured."""
    return None if one is None or not other else one / other
