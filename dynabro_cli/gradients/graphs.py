"""CUDA graphs: passes of a shape that comes again are replayed, instead of launched kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.gradients.engine import LOOP, WorkerGradients

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
TOLERANCE = 1e-4


class Replay(NamedTuple):
    """A captured pass: its replay function, its input, and its losses."""

    start: Callable[[], None]
    inputs: Tensor
    labels: Tensor
    losses: Tensor


class GraphedGradients:
    """Run ``engine`` with a CUDA graph for each shape of input from its second time on; called in the same way.

    A graph is used only if its first replay gives the engine's result. Models that draw random numbers, and models that need
    the loop over workers, are not captured.

    Attributes:
        state: ``on``, or why no graph is used: ``off: random layers``, ``off: loop over workers``, ``off: NAME`` of an error.

    Args:
        engine: The engine that computes the gradients.
        capture: Runs a function once while recording its kernels; returns a replay function, and the function's result.
    """

    def __init__(self, engine: WorkerGradients, capture: Capture | None = None) -> None:
        self._engine = engine
        self._capture = capture or capture_kernels
        self._seen: set[tuple[torch.Size, int]] = set()
        self._replays: dict[tuple[torch.Size, int], Replay] = {}
        self.state = "off: random layers" if engine.random else "on"

    def __call__(self, inputs: Tensor, labels: Tensor, batches: int, seeds: Sequence[int]) -> Tensor:
        """As ``WorkerGradients``; the losses [k] are overwritten by the next call."""
        if self.state == "on" and self._seen and self._engine.kind == LOOP:
            self.state = f"off: {LOOP}"
        key = inputs.shape, batches
        if self.state != "on" or key not in self._seen:
            self._seen.add(key)
            return self._engine(inputs, labels, batches, seeds)
        if key not in self._replays:
            return self._record(key, inputs.clone(), labels.clone())
        replay = self._replays[key]
        replay.inputs.copy_(inputs)
        replay.labels.copy_(labels)
        replay.start()
        return replay.losses

    def _record(self, key: tuple[torch.Size, int], inputs: Tensor, labels: Tensor) -> Tensor:
        """Compute this call's gradients plainly, capture them as well, and keep the graph if it agrees."""
        batches = key[1]
        plain = self._engine(inputs, labels, batches, ())
        matrix, statistics = self._engine.matrix.clone(), self._engine.statistics.clone()
        try:
            start, losses = self._capture(lambda: self._engine(inputs, labels, batches, ()))
            self._engine.matrix.zero_()
            start()
            difference = (self._engine.matrix[: len(inputs)] - matrix[: len(inputs)]).norm()
            if bool(difference <= TOLERANCE * matrix[: len(inputs)].norm()):
                self._replays[key] = Replay(start, inputs, labels, losses)
            else:
                self.state = "off: the replay differs"
        except RuntimeError as error:
            self.state = f"off: {type(error).__name__}"
        self._engine.matrix.copy_(matrix)
        self._engine.statistics.copy_(statistics)
        return plain


def capture_kernels(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Capture ``run`` as a CUDA graph, after three runs on a stream of their own, as torch asks for."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, result
