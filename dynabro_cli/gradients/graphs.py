"""CUDA graphs: rounds of a repeated form are replayed instead of launched kernel by kernel.

Everything that differs between two rounds of one form is in one row of bytes, which is copied to a
fixed place on the GPU, or in tensors whose places are fixed. A capture bakes in all else.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dynabro_cli.gradients.memory import free_memory, send

Capture = Callable[[Callable[[], Any]], tuple[Callable[[], None], Any]]
Held = dict[str, dict[str, Tensor]]
GRAPH_VALUES = 1 << 20
"""Input values of the largest gradient computation that is captured: two MNIST iterations. A larger
one keeps a GPU busy for longer than the host takes to launch its kernels.
"""
BACKWARD = 2.5
"""Memory of a pass, divided by the memory of the activations that its backward pass reads: it has
their gradients, too.
"""
WARM_UPS = 3
"""Plain runs before a capture; torch requires them."""
EAGER = 4
"""Rounds of a form before its capture: rare forms are not worth it, and caches are filled."""
CHECK = 1024
"""Replays of a graph from one check to the next; the first one is checked."""
ALIGNED = 8
"""Bytes to which the tensors of a row are aligned: the size of the largest type."""
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""Types with which numbers of so many bytes are compared bit for bit."""


class Graph(NamedTuple):
    """A captured round.

    Attributes:
        start: Replays it.
        row: The place of its inputs.
        held: The tensors of its states, which it reads and writes.
        run: Makes the round eagerly, from the same tensors to the same tensors.
        result: What the function returned.
    """

    start: Callable[[], None]
    row: Tensor
    held: Held
    run: Callable[[], Any]
    result: Any


class Graphed:
    """Call ``function(inputs, state)`` on a GPU, from its fifth round of one form on by a graph.

    The function may change tensors in ``changed()`` and replace the states: the attributes
    ``names`` of ``state``, dictionaries of tensors. A round's form is everything in ``inputs``
    except for the values of tensors, and the names, shapes and types of the states. The result
    depends on the form only.

    At the first replay of a graph, and at every 1,024th, the round is made twice from copies,
    eagerly and by the graph. If a bit differs, the eager round counts, and the form is eager from
    then on. So is a form that cannot be captured or whose graph does not fit into the memory.

    Attributes:
        reasons: Why forms are eager: an error, ``the replay differs``, or ``memory``.
        replays: The number of replays so far.

    Args:
        function: The function.
        changed: Returns the tensors that the function changes, besides the states. Their places in
            memory never change.
        names: The names of the states.
        device: The GPU.
        capture: Runs a function once while recording its kernels; returns a replay function, and
            the function's result.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        changed: Callable[[], list[Tensor]],
        names: Sequence[str],
        device: torch.device,
        capture: Capture | None = None,
    ) -> None:
        self._function, self._changed, self._names = function, changed, names
        self._device = device
        self._capture = capture or KernelCapture(device)
        # by hash: a run may have thousands of forms that come once
        self._times: collections.Counter[int] = collections.Counter()
        self._graphs: dict[Hashable, Graph] = {}
        self._used: collections.Counter[Hashable] = collections.Counter()
        # one tensor for all forms, so that the next round finds it in place
        self._places: dict[Hashable, Tensor] = {}
        self.reasons: dict[Hashable, str] = {}

    @property
    def replays(self) -> int:
        return self._used.total()

    @property
    def state(self) -> str:
        """Captured forms and replays so far, or ``off: `` and the reason; and why other forms are
        eager.
        """
        why = next(reversed(self.reasons.values()), None)
        if not self._graphs:
            return f"no form has come {EAGER + 1} times" if why is None else f"off: {why}"
        eager = "" if why is None else f"; {len(self.reasons)} eager, the last one: {why}"
        return f"on: {len(self._graphs)} forms, {self.replays} replays{eager}"

    def eagerly(self, inputs: Any, state: Any, reason: str = "") -> Any:
        """Call the function without a graph; draws that are iterators are drawn as it reads
        them.
        """
        if reason:
            self.reasons[reason] = reason
        tensors: list[Tensor] = []
        form_of(inputs, tensors)
        row = send(packed(tensors), self._device)
        return self._function(rebuilt(inputs, iter(unpacked(row, tensors))), state)

    def __call__(self, inputs: Any, state: Any, need: float) -> Any:
        """Call the function.

        Args:
            inputs: Nested tuples of tensors on the CPU and of constants.
            state: The state.
            need: Bytes that a graph of this form needs.
        """
        tensors: list[Tensor] = []
        held = self._states(state)
        key = form_of(inputs, tensors), _described(held)
        self._times[hash(key)] += 1
        known = key in self.reasons or key in self._graphs
        if not known and self._times[hash(key)] > EAGER:
            self._record(key, inputs, tensors, state, need)
            held = self._states(state)
        if key not in self._graphs:
            return self.eagerly(inputs, state)
        graph = self._graphs[key]
        send(packed(tensors), self._device, graph.row)
        self._hold(held, graph.held)
        _give(state, graph.held)
        check = self._used[key] % CHECK == 0
        self._used[key] += 1
        if not check:
            graph.start()
        elif not self._checked(graph):
            del self._graphs[key], self._used[key]
            self.reasons[key] = "the replay differs"
        return graph.result

    def _record(
        self, key: Hashable, inputs: Any, tensors: list[Tensor], state: Any, need: float
    ) -> None:
        """Capture a form, or keep the reason why this is not possible. No value changes."""
        if 2 * need > free_memory(self._device):
            self.reasons[key] = "memory"
            return
        row, before = send(packed(tensors), self._device), self._states(state)
        held = {
            name: {part: self._place(name, part, tensor) for part, tensor in parts.items()}
            for name, parts in before.items()
        }
        self._hold(before, held)
        given = rebuilt(inputs, iter(unpacked(row, tensors)))

        def run() -> Any:
            _give(state, held)
            result = self._function(given, state)
            after = self._states(state)
            if _described(after) != _described(held):
                raise RuntimeError("the round changes the names or shapes of states")
            self._hold(after, held)
            _give(state, held)
            return result

        kept = self._copies(held)
        try:
            start, result = self._capture(run)
            self._graphs[key] = Graph(start, row, held, run, result)
        # an eager round may fit into memory that is too small for the graph
        except RuntimeError as error:
            self.reasons[key] = _first_line(error)
        self._restore(held, kept)
        _give(state, held)

    def _checked(self, graph: Graph) -> bool:
        """Make the round eagerly and by the graph; return True if all bits are equal."""
        before = self._copies(graph.held)
        graph.run()
        eager = self._copies(graph.held)
        self._restore(graph.held, before)
        graph.start()
        pairs = zip(self._all(graph.held), eager, strict=True)
        if bool(torch.stack([(_bits(a) == _bits(b)).all() for a, b in pairs]).all()):
            return True
        self._restore(graph.held, eager)
        return False

    def _all(self, held: Held) -> list[Tensor]:
        """Return all tensors that a round changes."""
        return [*self._changed(), *(tensor for state in held.values() for tensor in state.values())]

    def _copies(self, held: Held) -> list[Tensor]:
        return [tensor.clone() for tensor in self._all(held)]

    def _restore(self, held: Held, copies: list[Tensor]) -> None:
        for tensor, copy in zip(self._all(held), copies, strict=True):
            tensor.copy_(copy)

    def _states(self, state: Any) -> Held:
        return {name: getattr(state, name) for name in self._names}

    def _place(self, name: str, part: str, tensor: Tensor) -> Tensor:
        """Return the place of a state's tensor."""
        key = name, part, tensor.shape, tensor.dtype
        if key not in self._places:
            self._places[key] = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        return self._places[key]

    @staticmethod
    def _hold(states: Held, held: Held) -> None:
        """Copy states to their places."""
        moved = [
            (place, states[name][part])
            for name, places in held.items()
            for part, place in places.items()
            if states[name][part] is not place
        ]
        # a state may be a part of what is overwritten here
        for (place, _), copy in zip(moved, [value.clone() for _, value in moved], strict=True):
            place.copy_(copy)


def form_of(value: Any, tensors: list[Tensor]) -> Hashable:
    """Return nested tuples with types and shapes in the place of tensors, and add the tensors to a
    list.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.dtype, value.shape
    if isinstance(value, tuple):
        return tuple([form_of(part, tensors) for part in value])
    return value  # type: ignore[no-any-return]


def rebuilt(value: Any, tensors: Iterator[Tensor]) -> Any:
    """Return nested tuples with other tensors in the place of theirs."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, tuple):
        parts = [rebuilt(part, tensors) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors of the CPU as one row of bytes."""
    row = bytearray()
    for tensor in tensors:
        row += tensor.numpy().tobytes()
        row += bytes(-len(row) % ALIGNED)
    return torch.frombuffer(row, dtype=torch.uint8)


def unpacked(row: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the views of a row's tensors."""
    views, start = [], 0
    for tensor in like:
        size = tensor.numel() * tensor.element_size()
        views.append(row[start : start + size].view(tensor.dtype).view(tensor.shape))
        start += size + -size % ALIGNED
    return views


def _described(states: Held) -> Hashable:
    return tuple(
        sorted(
            (name, part, tensor.shape, str(tensor.dtype), tensor.device.type)
            for name, tensors in states.items()
            for part, tensor in tensors.items()
        )
    )


def _give(state: Any, held: Held) -> None:
    for name, tensors in held.items():
        setattr(state, name, dict(tensors))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(INTEGERS[tensor.element_size()])


def _first_line(error: BaseException) -> str:
    """Return the error that came first, in a line: the end of a capture that failed raises another
    one, which says less.
    """
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:200]


def _without_waiting(run: Callable[[], Any]) -> None:
    """Run a function; raise RuntimeError if the host waits for the GPU in it, before a capture
    would fail.
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode(before)


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
                        _without_waiting(run)
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
