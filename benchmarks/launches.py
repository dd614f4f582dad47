"""Operations that a round launches on a GPU, and the bytes that they move, counted on a fake GPU:
not times.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from torch import Tensor

from benchmarks.cells import cell, stream
from benchmarks.fake_gpu import FakeGPU, launches, one_gpu
from benchmarks.measuring import table
from dynabro_cli import RunSpec
from dynabro_cli.core import events
from dynabro_cli.gradients import graphs
from dynabro_cli.gradients.engine import WorkerGradients
from dynabro_cli.simulation.loop import Simulation
from dynabro_cli.simulation.problem.images import ImageProblem
from dynabro_cli.simulation.round import update

ROUNDS = 6
"""Rounds of a run; the last round is counted, because the first rounds send tables that stay on the
GPU.
"""
PHASES = ("batches", "gradients", "server", "rest")
HEADER = [
    "round",
    "kernels",
    *PHASES,
    "all",
    "with graphs",
    "sent by the host",
    "gradients, GB",
    "server, GB",
]
CELLS = (("mnist", 17, "fp32"), ("cifar10", 25, "fp32"), ("cifar10", 25, "bf16"))
"""Tasks with the paper's numbers of workers, and precisions."""


def measure(rules: list[str], method: str) -> str:
    """Return a table of the launches and bytes of a round, by torch's operations and by Triton's
    kernels.
    """
    rows = []
    for task, workers, precision in CELLS:
        for rule in rules:
            spec = cell(
                task,
                method,
                rule,
                workers=workers,
                precision=precision,
                switching="static",
                budget=ROUNDS,
            )
            rows += [
                [f"{task}, {precision}, {rule}", kernels, *count(spec, kernels)]
                for kernels in ("off", "on")
            ]
    return table(HEADER, rows)


def count(spec: RunSpec, kernels: str) -> list[object]:
    """Return the launches of a run's last round (by phase, in all, and in all if the round
    is a graph), sent tensors, and GB.
    """
    sizes: list[int] = []

    compute = WorkerGradients.__call__

    def sized(engine: WorkerGradients, inputs: Tensor, *arguments: Any) -> Any:
        sizes.append(inputs.numel())
        return compute(engine, inputs, *arguments)

    with one_gpu(obstacle=None if kernels == "on" else "not wanted") as gpu, gpu.allowed():
        phases = _Phases(gpu)
        with contextlib.ExitStack() as stack:
            for place, name, phase in (
                (Simulation, "_round", "rest"),
                (ImageProblem, "_batches", "batches"),
                (WorkerGradients, "__call__", "gradients"),
            ):
                function = sized if phase == "gradients" else getattr(place, name)
                stack.enter_context(patch.object(place, name, phases.around(phase, function)))
            stack.enter_context(patch.object(graphs, "EAGER", ROUNDS))
            make = update.make_server

            def server(*arguments: Any) -> Any:
                made = make(*arguments)
                return made._replace(answer=phases.around("server", made.answer))

            stack.enter_context(patch.object(update, "make_server", server))
            for event in stream(spec, "cuda", tiny=True):
                if isinstance(event, events.RoundsDone):
                    break
    every = sum(phases.counts.values())
    # the copy of the row, the graph, and the copy of the numbers; a rule that sends a tensor has
    # waited for another one
    eager = sizes[-1] > graphs.GRAPH_VALUES or phases.sent > 1
    graphed = every if eager else 3
    moved = [f"{phases.moved[name] / 1e9:.2f}" for name in ("gradients", "server")]
    return [*(phases.counts[name] for name in PHASES), every, graphed, phases.sent, *moved]


class _Phases:
    """Counter of the launches of functions; a launch belongs to the innermost function. Each round
    starts from 0.
    """

    def __init__(self, gpu: FakeGPU) -> None:
        self._gpu = gpu
        self.counts: collections.Counter[str] = collections.Counter()
        self.moved: collections.Counter[str] = collections.Counter()
        self.sent = 0
        self._open: list[str] = []

    def _settle(self) -> None:
        moved, found = self._gpu.moved, launches(self._gpu.counted())
        if self._open:
            self.counts[self._open[-1]] += found
            self.moved[self._open[-1]] += moved

    @contextlib.contextmanager
    def _within(self, phase: str) -> Iterator[None]:
        self._settle()
        if phase == "rest":
            self.counts.clear()
            self.moved.clear()
            before = self._gpu.sent
        self._open.append(phase)
        try:
            yield
        finally:
            self._settle()
            self._open.pop()
            if phase == "rest":
                self.sent = self._gpu.sent - before

    def around(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with its launches counted as the phase's."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            with self._within(phase):
                return function(*arguments, **keywords)

        return call
