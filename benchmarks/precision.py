"""The gradients of all workers in fp32 and in bf16 on a CPU, in turn: their times, and the errors
of bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.floor import Case, noise
from benchmarks.measuring import in_turn, machine, table
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.gradients.engine import WorkerGradients
from dynabro_cli.gradients.memory import keep_pages

HEADER = [
    "gradients",
    "fp32, ms",
    "bf16, ms",
    "fp32 over bf16",
    "largest error of a worker's gradient",
]
INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")
"""Names of bf16's products in the flags of an x86 or ARM processor."""
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measure(chosen: Sequence[Case], repeats: int, threads: int | None) -> str:
    """Time each case's gradients in both precisions, compiled; return a table."""
    keep_pages()
    if threads is not None:
        torch.set_num_threads(threads)
    return (
        "Instructions for bf16: "
        f"{instructions()}\n{machine()}\n\n{table(HEADER, [row(case, repeats) for case in chosen])}"
    )


def instructions() -> str:
    """Return the processor's instructions for bf16 that the system reports."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return "unknown"
    return ", ".join(name for name in INSTRUCTIONS if name in flags) or "none"


def row(case: Case, repeats: int) -> list[object]:
    """Return the row of a case: times, their ratio, and the largest of the workers' |g_bf16 -
    g_fp32| / |g_fp32|.
    """
    engines = {name: _engine(case, dtype) for name, dtype in TYPES.items()}
    images = noise(case)
    labels = torch.arange(case.batch_size).remainder(case.shape.classes).expand(case.workers, -1)
    calls: dict[str, Callable[[], object]] = {
        name: lambda engine=engine: engine(
            images, labels, 1, list(range(case.workers)) if engine.random else []
        )
        for name, engine in engines.items()
    }
    seconds = in_turn(calls, repeats)
    exact, rounded = engines["fp32"].matrix, engines["bf16"].matrix
    error = float(((rounded - exact).norm(dim=1) / exact.norm(dim=1)).max())
    title = f"{case.model}, m = {case.workers}, B = {case.batch_size}"
    return [
        title,
        *(1000 * seconds[name] for name in TYPES),
        seconds["fp32"] / seconds["bf16"],
        error,
    ]


def _engine(case: Case, dtype: torch.dtype) -> WorkerGradients:
    torch.manual_seed(0)
    return WorkerGradients(
        REGISTRIES["models"].parse(case.model).build(case.shape),
        case.workers,
        dtype=dtype,
        compile="on",
    )
