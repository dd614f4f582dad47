"""Measure the cost of our iteration as the workers and the parameters become more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks import ours
from benchmarks.iteration import summary
from benchmarks.measuring import machine, ratio, table
from benchmarks.processes import take_turns, workers
from dynabro_cli import RunSpec
from dynabro_cli.errors import SpecError
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.room import check_room
from dynabro_cli.tasks.digits import SHAPE


def hidden_units(dimension: int) -> int:
    """The width of the ``mlp`` on digits whose number of parameters is nearest to ``dimension``."""
    inputs = SHAPE.channels * SHAPE.height * SHAPE.width
    return max(1, round((dimension - SHAPE.classes) / (inputs + 1 + SHAPE.classes)))


@dataclass(frozen=True)
class How:
    """Settings for all sizes: the rule, the images per worker, the process's threads, and the timed part.

    ``turns`` blocks of ``rounds`` rounds each are timed.
    """

    rule: str
    batch_size: int
    threads: int | None
    turns: int
    rounds: int
    compile: str = "auto"


def measure(counts: Sequence[int], dimensions: Sequence[int], how: How) -> str:
    """Time an iteration, and the memory of its process, for each number of workers and of parameters."""
    rows: list[list[object]] = []
    for dimension in dimensions:
        least: float | None = None
        for m in counts:
            title, size = f"d = {dimension:,}", 4 * m * dimension
            spec = spec_of(m, dimension, how)
            if not _fits(spec, how):
                rows.append([title, m, None, None, None, size / 2**20, "too little memory here"])
                continue
            milliseconds, peak = _one(spec, how)
            each = milliseconds / m
            least = least or each
            rows.append([title, m, milliseconds, each, ratio(each, least), size / 2**20, peak / 2**20])
    header = ["mlp on digits", "m", "ms", "ms a worker", "x the first", "[m, d], MiB", "peak RSS, MiB"]
    words = f"One iteration of ours, {how.rule}, {how.batch_size} images a worker, compile={how.compile}"
    return f"{words}\n{machine('cpu', how.threads)}\n\n{table(header, rows)}"


def spec_of(m: int, dimension: int, how: How) -> RunSpec:
    """A run of m workers, just under half of them Byzantine, on a network of about ``dimension`` parameters."""
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


def _fits(spec: RunSpec, how: How) -> bool:
    """Return True if the machine has the memory that a run of this kind is estimated to need."""
    try:
        check_room(resolve(spec), torch.device("cpu"), compiles=how.compile != "off")
    except SpecError:
        return False
    return True


def _one(spec: RunSpec, how: How) -> tuple[float, int]:
    """Milliseconds of an iteration, and the peak memory of its process in bytes."""
    arguments = {"spec": spec, "data_dir": None, "device": "cpu", "threads": how.threads, "compile": how.compile}
    with workers({"ours": (ours.rounds, arguments)}, how.threads) as groups:
        result = summary(take_turns(groups, how.turns)["ours"])
        return 1000 / result.rate, groups["ours"][0].close()
