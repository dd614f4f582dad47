"""CUDA graphs: passes of a shape that comes again are replayed, instead of launched kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.gradients.engine import LOOP, WorkerGradients
from dynabro_cli.gradients.memory import free_memory, send

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
Key = tuple[torch.Size, int]
TOLERANCE = 1e-4
BACKWARD = 2.5
"""Memory of a pass over the activations that its backward pass reads."""


class Replay(NamedTuple):
    """A captured pass: its replay function, its inputs, and its losses."""

    start: Callable[[], None]
    inputs: Tensor
    labels: Tensor
    seeds: Tensor | None
    losses: Tensor


class GraphedGradients:
    """Run ``engine`` with a CUDA graph for each shape of input from its second time on; called in the same way.

    A graph is used only if its first replay gives the engine's result. A shape that cannot be captured, or for whose graph
    the memory is short, is computed plainly, and the others are not affected. Models that need the loop over workers are not
    captured. Seeds of dropout are in the graph's memory.

    Attributes:
        state: ``on``, or why no graph is used: ``off: loop over workers``, or ``off: `` and the last shape's reason if no shape
            could be captured.
        reasons: The shapes that are computed plainly, and why: the name of an error, ``the replay differs``, or ``memory``.

    Args:
        engine: The engine that computes the gradients.
        capture: Runs a function once while recording its kernels; returns a replay function, and the function's result.
    """

    def __init__(self, engine: WorkerGradients, capture: Capture | None = None) -> None:
        self._engine = engine
        self._capture = capture or capture_kernels
        self._seen: set[Key] = set()
        self._replays: dict[Key, Replay] = {}
        self.reasons: dict[Key, str] = {}
        self.state = "on"

    def __call__(self, inputs: Tensor, labels: Tensor, batches: int, seeds: Sequence[int] | Tensor) -> Tensor:
        """As ``WorkerGradients``; the losses [k] are overwritten by the next call."""
        if self.state == "on" and self._seen and self._engine.kind == LOOP:
            self.state = f"off: {LOOP}"
        key = inputs.shape, batches
        if self._engine.kind == LOOP or key not in self._seen or key in self.reasons:
            self._seen.add(key)
            return self._engine(inputs, labels, batches, seeds)
        given = None
        if len(seeds):
            given = seeds if isinstance(seeds, Tensor) else send(torch.tensor(seeds), inputs.device)
        if key not in self._replays:  # with copies, as replays overwrite what they read
            return self._record(key, inputs.clone(), labels.clone(), None if given is None else given.clone())
        replay = self._replays[key]
        replay.inputs.copy_(inputs)
        replay.labels.copy_(labels)
        if replay.seeds is not None and given is not None:
            replay.seeds.copy_(given)
        replay.start()
        return replay.losses

    def _record(self, key: Key, inputs: Tensor, labels: Tensor, seeds: Tensor | None) -> Tensor:
        """Compute this call's gradients plainly, capture them as well, and keep the graph if it agrees."""
        engine, own = self._engine, seeds if seeds is not None else ()

        def run() -> Tensor:
            return engine(inputs, labels, key[1], own)

        plain = run()
        if not self._fits(inputs):
            return self._give_up(key, "memory", plain)
        matrix, statistics = engine.matrix.clone(), engine.statistics.clone()
        reason, before = "the replay differs", engine.pass_values
        try:
            start, losses = self._capture(run)
            engine.matrix.zero_()
            start()
            difference = (engine.matrix[: len(inputs)] - matrix[: len(inputs)]).norm()
            if bool(difference <= TOLERANCE * matrix[: len(inputs)].norm()):
                self._replays[key], reason = Replay(start, inputs, labels, seeds, losses), ""
                self.state = "on"
        except RuntimeError as error:
            reason, engine.pass_values = type(error).__name__, before  # memory is short for the graph, not for a plain pass
        engine.matrix.copy_(matrix)
        engine.statistics.copy_(statistics)
        return self._give_up(key, reason, plain) if reason else plain

    def _give_up(self, key: Key, reason: str, losses: Tensor) -> Tensor:
        """Compute a shape plainly from now on."""
        self.reasons[key] = reason
        self.state = "on" if self._replays else f"off: {reason}"
        return losses

    def _fits(self, inputs: Tensor) -> bool:
        """Return True if a pass of this shape fits twice into the free memory: in the graph's pool, and beside it."""
        if not inputs.is_cuda:
            return True
        samples = min(inputs.numel(), max(self._engine.pass_values, inputs[0].numel())) // inputs[0, 0].numel()
        return 2 * BACKWARD * self._engine.kept * samples <= free_memory(inputs.device)


_pools: dict[int, object] = {}


def capture_kernels(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Capture ``run`` as a CUDA graph, after three runs on a stream of their own, as torch asks for.

    All graphs of a GPU share a pool of memory: they are replayed one at a time, and what they leave there is read before the
    next one begins, but for the losses, whose memory stays taken.
    """
    device = torch.cuda.current_device()
    if device not in _pools:
        _pools[device] = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pools[device]):  # type: ignore[arg-type]
        result = run()
    return graph.replay, result
