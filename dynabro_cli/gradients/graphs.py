"""CUDA graphs: rounds of a repeated form are replayed instead of launched kernel by kernel.

Everything that differs between two rounds of one form is in one row of bytes, which is copied to a
fixed place on the GPU, or in tensors whose places are fixed. A capture bakes in all else.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dynabro_cli.core.errors import DoubtfulRunError
from dynabro_cli.core.machine.gpu_kernels import unchecked
from dynabro_cli.gradients.memory import free_memory, send

Capture = Callable[[Callable[[], Any]], tuple[Callable[[], None], Any]]
States = tuple[dict[str, Tensor], ...]
GRAPH_VALUES = 1 << 20
"""Input values of the largest iteration that is captured: two MNIST iterations. A larger one keeps
a GPU busy for longer than the host takes to launch its kernels.
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
"""Replays of a graph from one check to the next; before, the replays 1, 2, 4, 8 and so on are
checked.
"""
DISTURBED = 100
"""Replays of a run among which the first one after other work on the GPU is checked, too."""
MOST_GRAPHS = 64
"""Graphs of a run: each takes up to 1 MB of a GPU, which the estimated need does not include."""
ALIGNED = 8
"""Bytes to which the tensors of a row are aligned: the size of the largest type."""


class Graph(NamedTuple):
    """A captured round.

    Attributes:
        start: Replays it.
        row: The place of its inputs.
        states: The states, which it reads and writes.
        places: The tensors of ``states``.
        changed: All tensors that it changes, ``places`` among them, except for ``numbers``.
        run: Makes the round of a state eagerly in the same places; returns its numbers.
        numbers: The measured numbers of the last replay.
        measured: For each number that the function returns, True if it is measured.
    """

    start: Callable[[], None]
    row: Tensor
    states: States
    places: list[Tensor]
    changed: list[Tensor]
    run: Callable[[Any], tuple[Tensor, list[bool]]]
    numbers: Tensor
    measured: list[bool]


class Graphed:
    """Call ``function(inputs, state)`` on a GPU, from its fifth round of one form on by a graph.

    The function returns numbers: tensors without dimensions, or None. It may change ``changed`` in
    place and replace the states: the attributes ``names`` of ``state``, dictionaries of tensors. A
    round's form is everything in ``inputs`` except for the values of tensors, and the names, shapes
    and types of the states. The form determines which numbers are None.

    At the replays 1, 2, 4, 8, ... of a graph up to 1,024, at every 1,024th, and at the next one
    after ``disturbed`` was set, the round is made twice from copies, eagerly and by the graph. If a
    bit differs at the first one, the eager round
    counts, and the form is eager from then on. So is a form that cannot be captured or whose graph
    does not fit into the memory, any further form after 64 graphs, and any further form of a
    process in which a capture has failed.

    Attributes:
        disturbed: Set it to True after other work on the GPU, such as an evaluation, which may
            use memory that a wrong graph reads; ignored after 100 replays.

    Args:
        function: The function.
        changed: The tensors that the function changes, besides the states.
        names: The names of the states.
        device: The GPU.
        need: Bytes that a graph needs; or the reason why graphs do not serve the function.
        capture: Runs a function once while recording its kernels; returns a replay function, and
            the function's result.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], tuple[Tensor | None, ...]],
        changed: list[Tensor],
        names: Sequence[str],
        device: torch.device,
        need: float | str,
        capture: Capture | None = None,
    ) -> None:
        self._function, self._changed, self._names = function, changed, names
        self._device, self._need = device, need
        self._capture = capture or KernelCapture(device)
        # by hash: a run may have thousands of forms that come once
        self._rounds: collections.Counter[int] = collections.Counter()
        # a form without a graph has the reason instead
        self._graphs: dict[Hashable, Graph | str] = {}
        # all forms share places, so that the next round finds its states in place
        self._places: dict[Hashable, list[Tensor]] = {}
        self._replays = 0
        self.disturbed = False

    @property
    def state(self) -> str:
        """Captured forms and replays so far, or ``off``; and the reasons for which other forms are
        eager, each with the number of forms.
        """
        if isinstance(self._need, str):
            return f"off: {self._need}"
        reasons = collections.Counter(why for why in self._graphs.values() if isinstance(why, str))
        eager = "; ".join(f"{why} ({count})" for why, count in reasons.items())
        graphs = len(self._graphs) - reasons.total()
        if graphs:
            return f"on: {graphs} forms, {self._replays} replays" + (eager and f"; eager: {eager}")
        return f"off: {eager}" if eager else f"no form has come {EAGER + 1} times"

    def __call__(self, inputs: Any, state: Any) -> tuple[Tensor | None, ...]:
        """Call the function with nested tuples of constants and of tensors on the CPU.

        Raises:
            DoubtfulRunError: A later replay differs, after replays that were not checked.
        """
        if isinstance(self._need, str):
            return self._function(on_device(inputs, self._device), state)
        given, held = list[Tensor](), list[Tensor]()
        form = form_of(inputs, given), form_of(self._states(state), held)
        self._rounds[hash(form)] += 1
        replay = self._rounds[hash(form)] - EAGER
        if replay == 1:
            self._graphs[form] = self._recorded(inputs, given, state, held, form[1])
        graph = self._graphs.get(form)
        if not isinstance(graph, Graph):
            return self._function(on_device(inputs, self._device), state)
        send(packed(given), self._device, graph.row)
        _move(held, graph.places)
        self._replays += 1
        disturbed, self.disturbed = self.disturbed and self._replays <= DISTURBED, False
        if replay % CHECK and replay & (replay - 1) and not disturbed:
            graph.start()
        elif not self._agrees(graph, state):
            if replay > 1:
                raise DoubtfulRunError(
                    f"replay {replay} of a CUDA graph differs from the round without it: earlier "
                    "rounds may be wrong. Try: --compile off"
                )
            self._graphs[form] = "the replay differs"
            warnings.warn("a CUDA graph differs from its round: it is not used", stacklevel=2)
        self._give(state, graph.states)
        numbers = iter(graph.numbers.clone())  # because the next replay overwrites them
        return tuple(next(numbers) if measured else None for measured in graph.measured)

    def _recorded(
        self, inputs: Any, given: list[Tensor], state: Any, held: list[Tensor], kind: Hashable
    ) -> Graph | str:
        """Capture a form, or return the reason why this is not possible; no value changes.

        ``given`` are the tensors of the inputs, ``held`` of the states, whose form is ``kind``.
        """
        if KernelCapture.failed:
            return "a capture has failed in this process"
        if sum(isinstance(graph, Graph) for graph in self._graphs.values()) >= MOST_GRAPHS:
            return f"{MOST_GRAPHS} graphs"
        if isinstance(self._need, float) and 2 * self._need > free_memory(self._device):
            return "memory"
        row = send(packed(given), self._device)
        arguments = rebuilt(inputs, unpacked(row, given))
        if kind not in self._places:
            self._places[kind] = [torch.empty_like(x, device=self._device) for x in held]
        places = self._places[kind]
        _move(held, places)
        states = rebuilt(self._states(state), iter(places))

        def run(state: Any) -> tuple[Tensor, list[bool]]:
            self._give(state, states)
            numbers = self._function(arguments, state)
            after = list[Tensor]()
            if form_of(self._states(state), after) != kind:
                raise RuntimeError("the round changes the names or shapes of states")
            _move(after, places)
            row = torch.stack([number.double() for number in numbers if number is not None])
            return row, [number is not None for number in numbers]

        changed = [*self._changed, *places]
        before = [tensor.clone() for tensor in changed]
        graph: Graph | str
        try:
            with unchecked():
                start, (numbers, measured) = self._capture(lambda: run(state))
            graph = Graph(start, row, states, places, changed, run, numbers, measured)
        # an eager round may fit into memory that is too small for the graph
        except RuntimeError as error:
            graph = _first_line(error)
        _copy(before, changed)
        self._give(state, states)
        return graph

    def _agrees(self, graph: Graph, state: Any) -> bool:
        """Make the round eagerly and by the graph; return True if all bits are equal, else keep
        the eager round.
        """
        before = [tensor.clone() for tensor in graph.changed]
        numbers, _ = graph.run(state)
        eager = [*(tensor.clone() for tensor in graph.changed), numbers]
        _copy(before, graph.changed)
        graph.start()
        replayed = [*graph.changed, graph.numbers]
        pairs = zip(eager, replayed, strict=True)
        same = all(torch.equal(_bits(one), _bits(other)) for one, other in pairs)
        if not same:
            _copy(eager, replayed)
        return same

    def _states(self, state: Any) -> States:
        return tuple([getattr(state, name) for name in self._names])

    def _give(self, state: Any, states: States) -> None:
        for name, tensors in zip(self._names, states, strict=True):
            setattr(state, name, dict(tensors))


def on_device(value: Any, device: torch.device) -> Any:
    """Return nested tuples whose tensors, on the CPU, are sent to a GPU as one row."""
    if device.type == "cpu":
        return value
    tensors = list[Tensor]()
    form_of(value, tensors)
    return rebuilt(value, unpacked(send(packed(tensors), device), tensors))


def form_of(value: Any, tensors: list[Tensor]) -> Hashable:
    """Return nested tuples and dictionaries as tuples, with types and shapes in the place of
    tensors, and add the tensors to a list.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.dtype, value.shape
    if isinstance(value, dict):
        value = tuple(sorted(value.items()))
    if isinstance(value, tuple):
        return tuple([form_of(part, tensors) for part in value])
    return value  # type: ignore[no-any-return]


def rebuilt(value: Any, tensors: Iterator[Tensor]) -> Any:
    """Return nested tuples and dictionaries with other tensors, in the order of ``form_of``."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {name: rebuilt(value[name], tensors) for name in sorted(value)}
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


def unpacked(row: Tensor, like: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the views of a row's tensors."""
    start = 0
    for tensor in like:
        size = tensor.numel() * tensor.element_size()
        yield row[start : start + size].view(tensor.dtype).view(tensor.shape)
        start += size + -size % ALIGNED


def _copy(values: Iterable[Tensor], places: Iterable[Tensor]) -> None:
    for value, place in zip(values, places, strict=True):
        place.copy_(value)


def _move(values: list[Tensor], places: list[Tensor]) -> None:
    """Copy states to their places; a state may be a part of what is overwritten here."""
    moved = [pair for pair in zip(values, places, strict=True) if pair[0] is not pair[1]]
    _copy([value.clone() for value, _ in moved], [place for _, place in moved])


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


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
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
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

    def __call__(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
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
                try:
                    with torch.cuda.stream(self._stream):
                        for _ in range(WARM_UPS):
                            _without_waiting(run)
                finally:
                    # also after an error: the caller restores what these kernels still write
                    outside.wait_stream(self._stream)
                return self._captured(run)
            finally:
                torch.cuda.set_stream(outside)  # a failed capture leaves its own stream current

    def _captured(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
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
