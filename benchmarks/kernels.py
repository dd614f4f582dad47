"""Kernels by ablation: the CPU time of a round with all compiled kernels, and without each of them.

Torch computes what a missing kernel would. The column ``again`` is the control: a second process
with all kernels. A ratio that is as close to 1 as the control's says nothing.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dynabro_cli
from benchmarks.cells import FOREVER, cell, stream
from benchmarks.measuring import machine
from benchmarks.processes import Block, take_turns, workers
from dynabro_cli import RunSpec, simulate
from dynabro_cli.core.events import RoundsDone

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
    "mnist-cwtm": cell("mnist", "momentum:beta=0.9", "cwtm", budget=FOREVER),
    "mnist-gm": cell("mnist", "momentum:beta=0.9", "gm", attack="alie", budget=FOREVER),
    "digits-cwtm": RunSpec(method="momentum:beta=0.9", aggregator="cwtm", **SMALL),
    "digits-nnm+gm": RunSpec(
        method="momentum:beta=0.9", pre_aggregators="nnm", aggregator="gm", **SMALL
    ),
    "cifar10-cwmed": cell(
        "cifar10", "momentum:beta=0.9", "cwmed", model="cnn-cifar:width=0.25", budget=FOREVER
    ),
    "quadratic-cwtm": RunSpec(
        task="quadratic",
        method="momentum:beta=0.9",
        aggregator="cwtm",
        switching="periodic:K=10",
        workers=17,
        byzantine=8,
        eval_every=FOREVER,
        budget=FOREVER,
    ),
}
KERNELS = sorted(path.stem for path in Path(dynabro_cli.__file__).parent.rglob("*.cpp"))
"""Names of the source files."""


def rounds(spec: RunSpec, without: str | None) -> Iterator[Block]:
    """Run ``spec`` without a kernel; yield a block of CPU seconds for each ``RoundsDone``."""
    from dynabro_cli.core.machine import native

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
    header = ["cell", "ms a round", "again", *(f"without {name.strip('_')}" for name in kernels)]
    yield f"| {' | '.join(header)} |\n|{' --- |' * len(header)}"
    for title in cases:
        left_out = {"all": None, "again": None} | {name: name for name in kernels}
        sides = {
            side: (rounds, {"spec": CELLS[title], "without": name})
            for side, name in left_out.items()
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
