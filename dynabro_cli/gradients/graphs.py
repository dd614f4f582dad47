"""CUDA graphs: passes of a repeated shape are replayed instead of launched kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dynabro_cli.gradients.engine import LOOP, WorkerGradients
from dynabro_cli.gradients.memory import free_memory, send

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
Key = tuple[torch.Size, int]
GRAPH_VALUES = 1 << 20
"""Input values of the largest pass that is captured: two MNIST iterations. A larger pass keeps a
GPU busy for longer than the host takes to launch its kernels.
"""
TOLERANCE = 1e-4
BACKWARD = 2.5
"""Memory of a pass, divided by the memory of the activations that its backward pass reads: it has
their gradients, too.
"""
WARM_UPS = 3
"""Plain runs before a capture; torch requires them."""


class Replay(NamedTuple):
    """A captured pass: its replay function, its inputs, and its losses."""

    start: Callable[[], None]
    inputs: Tensor
    labels: Tensor
    seeds: Tensor | None
    losses: Tensor


class GraphedGradients:
    """Run ``engine`` with a CUDA graph for each shape of input from its second time on; called in
    the same way.

    A graph is used only if its first replay gives the engine's result. If a shape is large or
    cannot be captured, or its graph does not fit into the memory, the shape is computed plainly;
    other shapes are not affected. Models that need the loop over workers are not captured. Seeds of
    dropout are in the graph's memory.

    Attributes:
        reasons: The shapes that are computed plainly, and why: an error, ``large passes``, ``the
            replay differs``, or ``memory``.
        replays: The number of replays so far, without first replays.

    Args:
        engine: The engine that computes the gradients.
        capture: Runs a function once while recording its kernels; returns a replay function, and
            the function's result.
    """

    def __init__(self, engine: WorkerGradients, capture: Capture | None = None) -> None:
        self._engine = engine
        self._capture = capture or KernelCapture(engine.parameters.device)
        self._seen: set[Key] = set()
        self._replays: dict[Key, Replay] = {}
        self.reasons: dict[Key, str] = {}
        self.replays = 0

    @property
    def state(self) -> str:
        """Captured shapes and replays so far, or ``off: `` and the reason; and why other shapes are
        computed plainly.
        """
        if self._engine.kind == LOOP and self._seen:
            return f"off: {LOOP}"
        why = next(reversed(self.reasons.values()), None)
        if not self._replays:
            return "no shape has come twice" if why is None else f"off: {why}"
        plain = (
            "" if why is None else f"; {len(self.reasons)} computed plainly, the last one: {why}"
        )
        return f"on: {len(self._replays)} shapes, {self.replays} replays{plain}"

    def __call__(
        self, inputs: Tensor, labels: Tensor, batches: int, seeds: Sequence[int] | Tensor
    ) -> Tensor:
        """Compute gradients like ``WorkerGradients``; the next call overwrites the losses [k]."""
        key = inputs.shape, batches
        if inputs.numel() > GRAPH_VALUES:
            self.reasons[key] = "large passes"
        if self._engine.kind == LOOP or key not in self._seen or key in self.reasons:
            self._seen.add(key)
            return self._engine(inputs, labels, batches, seeds)
        given = None
        if len(seeds):
            given = seeds if isinstance(seeds, Tensor) else send(torch.tensor(seeds), inputs.device)
        if key not in self._replays:  # with copies, because replays overwrite the graph's inputs
            return self._record(
                key, inputs.clone(), labels.clone(), None if given is None else given.clone()
            )
        replay = self._replays[key]
        replay.inputs.copy_(inputs)
        replay.labels.copy_(labels)
        if replay.seeds is not None and given is not None:
            replay.seeds.copy_(given)
        replay.start()
        self.replays += 1
        return replay.losses

    def _record(self, key: Key, inputs: Tensor, labels: Tensor, seeds: Tensor | None) -> Tensor:
        """Compute this call's gradients plainly, capture the pass as well, and keep the graph if it
        agrees.

        Gradients that are not finite cannot be compared with a replay: the shape's next call is
        captured instead.
        """
        engine, static_seeds = self._engine, seeds if seeds is not None else ()

        def run() -> Tensor:
            return engine(inputs, labels, key[1], static_seeds)

        plain = run()
        if not self._fits(inputs):
            return self._give_up(key, "memory", plain)
        k, kept = len(inputs), [engine.matrix.clone(), engine.statistics.clone()]
        expected = [plain, *(result[:k] for result in kept)]
        if not bool(torch.stack([result.isfinite().all() for result in expected]).all()):
            return plain
        reason, before = "the replay differs", engine.pass_values
        try:
            start, losses = self._capture(run)
            results = [losses, engine.matrix[:k], engine.statistics[:k]]
            # else what the plain pass has left there would agree, even if the replay wrote nothing
            for result in results:
                result.zero_()
            start()
            same = [
                (replayed - other).norm() <= TOLERANCE * other.norm()
                for replayed, other in zip(results, expected, strict=True)
            ]
            if bool(torch.stack(same).all()):
                self._replays[key], reason = Replay(start, inputs, labels, seeds, losses), ""
        # a plain pass may fit into memory that is too small for the graph
        except RuntimeError as error:
            reason, engine.pass_values = _first_line(error), before
        for result, value in zip((engine.matrix, engine.statistics), kept, strict=True):
            result.copy_(value)
        return self._give_up(key, reason, plain) if reason else plain

    def _give_up(self, key: Key, reason: str, losses: Tensor) -> Tensor:
        """Compute a shape plainly from now on."""
        self.reasons[key] = reason
        return losses

    def _fits(self, inputs: Tensor) -> bool:
        """Return True if a pass of this shape fits into the free memory twice: in the graph's pool,
        and outside it.
        """
        if not inputs.is_cuda:
            return True
        samples = (
            min(inputs.numel(), max(self._engine.pass_values, inputs[0].numel()))
            // inputs[0, 0].numel()
        )
        return 2 * BACKWARD * self._engine.kept * samples <= free_memory(inputs.device)


def _first_line(error: BaseException) -> str:
    """Return the error that came first, in a line: the end of a capture that failed raises another
    one, which says less.
    """
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:200]


class KernelCapture:
    """Capture functions as CUDA graphs on one stream of a GPU, with one pool of memory.

    Graphs are replayed one at a time, and their tensors in the pool are read before the next replay
    begins. Only the memory of the results stays reserved.

    Attributes:
        failed: The number of captures in this process that failed after they began. Before torch
            2.12, such a failure leaves the process's allocator recording: the next run needs
            another process.

    Args:
        device: The GPU.
    """

    # Torch keeps memory of captures after they end. The rules are:
    # - A pool whose graphs are all deleted must not be captured into, but the pool exists as long
    # as a tensor is in it.
    # - cuBLAS keeps a workspace for each stream. If allocated during a capture, it lies in the
    # graph's pool. So the runs before a capture are on its stream. All captures share the stream,
    # because each workspace takes up to 64 MiB.
    # - Deleting a graph frees its stream's workspaces (torch 2.12), which the other graphs use. So
    # no graph is deleted before the others, not even a failed one, and no two objects of this class
    # share a stream or a pool.

    failed: ClassVar[int] = 0

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Run a function some times, and then once while its kernels are recorded; return the
        replay function and the result.

        Raises:
            RuntimeError: The function or its capture failed.
        """
        with torch.cuda.device(self._device):
            outside = torch.cuda.current_stream()
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            self._stream.wait_stream(outside)
            try:
                with torch.cuda.stream(self._stream):
                    for _ in range(WARM_UPS):
                        run()
                outside.wait_stream(self._stream)
                return self._captured(run)
            finally:
                torch.cuda.set_stream(outside)  # a failed capture leaves its own stream current

    def _captured(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        graph = torch.cuda.CUDAGraph()
        self._graphs.append(graph)
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                result = run()
        except BaseException:
            self._pool = None  # the next capture uses a new pool
            KernelCapture.failed += 1
            raise
        return graph.replay, result
