"""Kernels by ablation: the CPU time of a round with all compiled kernels, and without each of them.

A kernel that brings little on every cell is not worth its lines. Torch computes what a missing
kernel would.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.cells import cell, stream
from benchmarks.measuring import machine
from benchmarks.processes import Block, take_turns, workers
from dynabro_cli import RunSpec, simulate
from dynabro_cli.events import RoundsDone

FOREVER = 10**9
"""Budget, and distance between evaluations, that no process reaches."""
WARM_UP = 2
"""Events of rounds before the first that counts: libraries load, and torch picks algorithms."""
SMALL: dict[str, Any] = {
    "task": "digits",
    "model": "mlp",
    "switching": "periodic:K=20",
    "eval_every": FOREVER,
    "budget": FOREVER,
}
CELLS: dict[str, RunSpec] = {
    "MNIST, sf, cwtm": cell("mnist", "momentum:beta=0.9", "cwtm", budget=FOREVER),
    "MNIST, alie, gm": cell("mnist", "momentum:beta=0.9", "gm", attack="alie", budget=FOREVER),
    "digits/mlp, cwtm": RunSpec(method="momentum:beta=0.9", aggregator="cwtm", **SMALL),
    "digits/mlp, nnm+gm": RunSpec(
        method="momentum:beta=0.9", pre_aggregators="nnm", aggregator="gm", **SMALL
    ),
    "CIFAR-10/4, ipm, cwmed": cell(
        "cifar10", "momentum:beta=0.9", "cwmed", model="cnn-cifar:width=0.25", budget=FOREVER
    ),
}
KERNELS = ("batch_norm", "conv_block", "conv_weights", "linear", "gram", "_order", "_weiszfeld")


def rounds(spec: RunSpec, without: str | None) -> Iterator[Block]:
    """Run ``spec`` without a kernel; yield a block of CPU seconds for each ``RoundsDone``."""
    from dynabro_cli.machine import native

    load = native._load

    def without_kernel(source: Any, defines: tuple[str, ...]) -> Any:
        if source.stem == without:
            raise native.NativeError("left out")
        return load(source, defines)

    native._load = without_kernel  # type: ignore[assignment]
    events = (
        stream(spec, "cpu", compile="auto")
        if spec.task in ("mnist", "cifar10")
        else simulate(spec, device="cpu", compile="auto")
    )
    before = time.process_time()
    done = (len(event.rounds) for event in events if isinstance(event, RoundsDone))
    for number, count in enumerate(done):
        now = time.process_time()
        if number >= WARM_UP:
            yield Block(count, now - before, {})
        before = time.process_time()


def measure(cases: list[str], kernels: list[str], turns: int) -> Iterator[str]:
    """Measure cells with all kernels and without each of ``kernels``, in turn; yield the lines of a
    table of ratios.
    """
    yield f"CPU time of a round, and its ratio without a kernel\n{machine('cpu', 1)}\n"
    header = ["cell", "ms a round", *(f"without {name.strip('_')}" for name in kernels)]
    yield f"| {' | '.join(header)} |\n|{' --- |' * len(header)}"
    for title in cases:
        sides = {"all": (rounds, {"spec": CELLS[title], "without": None})} | {
            name: (rounds, {"spec": CELLS[title], "without": name}) for name in kernels
        }
        with workers(sides, threads=1) as groups:
            blocks = take_turns(groups, turns)
        milliseconds = {
            name: 1e3
            * statistics.median(
                block.seconds / block.iterations for block in itertools.chain(*results)
            )
            for name, results in blocks.items()
        }
        whole = milliseconds.pop("all")
        ratios = (f"{value / whole:.2f}" for value in milliseconds.values())
        yield f"| {' | '.join([title, f'{whole:.2f}', *ratios])} |"
