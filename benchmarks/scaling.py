"""Cost of our iteration with growing numbers of workers and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import ours
from benchmarks.iteration import summary
from benchmarks.measuring import machine, ratio, table
from benchmarks.processes import take_turns, workers
from dynabro_cli import RunSpec
from dynabro_cli.components.tasks.digits import SHAPE
from dynabro_cli.gradients.memory import free_memory

COPIES = 6
"""Number of matrices [m, d] that an iteration is assumed to hold at a time; sizes that cannot fit
are left out.
"""


def hidden_units(dimension: int) -> int:
    """Return the width of the ``mlp`` on digits whose number of parameters is nearest to
    ``dimension``.
    """
    inputs = SHAPE.channels * SHAPE.height * SHAPE.width
    return max(1, round((dimension - SHAPE.classes) / (inputs + 1 + SHAPE.classes)))


@dataclass(frozen=True)
class How:
    """Settings for all sizes: the rule, the images per worker, the process's threads, and the timed
    part.

    ``turns`` blocks of ``rounds`` rounds each are timed.
    """

    rule: str
    batch_size: int
    threads: int | None
    turns: int
    rounds: int
    compile: str = "auto"


def measure(counts: Sequence[int], dimensions: Sequence[int], how: How) -> str:
    """Time an iteration, and the memory of its process, for each number of workers and of
    parameters.
    """
    rows: list[list[object]] = []
    for dimension in dimensions:
        least: float | None = None
        for m in counts:
            title, size = f"d = {dimension:,}", 4 * m * dimension
            if COPIES * size > free_memory(torch.device("cpu")):
                rows.append([title, m, None, None, None, size / 2**20, "too little memory here"])
                continue
            milliseconds, peak = _one(spec_of(m, dimension, how), how)
            each = milliseconds / m
            least = least or each
            rows.append(
                [title, m, milliseconds, each, ratio(each, least), size / 2**20, peak / 2**20]
            )
    header = [
        "mlp on digits",
        "m",
        "ms",
        "ms a worker",
        "x the first",
        "[m, d], MiB",
        "peak RSS, MiB",
    ]
    words = (
        f"One iteration of ours, {how.rule}, {how.batch_size} images a worker, "
        f"compile={how.compile}"
    )
    return f"{words}\n{machine('cpu', how.threads)}\n\n{table(header, rows)}"


def spec_of(m: int, dimension: int, how: How) -> RunSpec:
    """Return a run of m workers, just under half of them Byzantine, on a network of about
    ``dimension`` parameters.
    """
    return RunSpec(
        task="digits",
        model=f"mlp:hidden={hidden_units(dimension)}",
        method="momentum:beta=0.9",
        aggregator=how.rule,
        switching="static",
        workers=m,
        byzantine=(m - 1) // 2,
        batch_size=how.batch_size,
        budget=ours.FOREVER,
        eval_every=how.rounds,
    )


def _one(spec: RunSpec, how: How) -> tuple[float, int]:
    """Return the milliseconds of an iteration, and the peak memory of its process in bytes."""
    arguments: dict[str, Any] = {
        "spec": spec,
        "data_dir": None,
        "device": "cpu",
        "threads": how.threads,
        "compile": how.compile,
    }
    # too large sizes are already left out, by a less cautious estimate than a run's own
    arguments["force"] = True
    with workers({"ours": (ours.rounds, arguments)}, how.threads) as groups:
        result = summary(take_turns(groups, how.turns)["ours"])
        return 1000 / result.rate, groups["ours"][0].close()
