"""CUDA's streams, graphs and pools of memory in a script: torch's rules for them, with kernels that
run on the CPU.

The rules come from ``CUDACachingAllocator.cpp`` (``create_or_incref_pool``), ``CUDAGraph.cpp``
(``reset``) and ``cuda/graphs.py`` (``graph.__exit__``) of torch 2.14.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Stream:
    """A stream; its cuBLAS workspace is made by the first computation on it, and lies in the pool
    that is captured into.
    """

    def __init__(self, cuda: ScriptedCuda) -> None:
        self.cuda, self.workspace, self.time = cuda, 0, 0
        self.waited: dict[Stream, int] = {}

    def wait_stream(self, other: Stream) -> None:
        self.cuda.log.append("wait")
        for stream, time in (*other.waited.items(), (other, other.time)):
            self.waited[stream] = max(time, self.waited.get(stream, 0))


class RaceError(AssertionError):
    """A stream uses a tensor that another one writes, or writes one that another one reads,
    without having waited for it.
    """


class Clock(TorchDispatchMode):
    """Refuse races: each stream counts its operations, and knows up to which one it has waited for
    the others.
    """

    def __init__(self, cuda: ScriptedCuda) -> None:
        super().__init__()
        self._cuda = cuda
        self._kept: list[Tensor] = []  # so that no memory is used again
        self._uses: dict[int, dict[Stream, tuple[int, bool]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._cuda.capturing is None:  # captured operations are not executed
            self._cuda.current.time += 1
            schema = func._schema.arguments
            for argument, value in zip(schema, args, strict=False):
                alias = argument.alias_info
                self._use(value, alias is not None and alias.is_write)
            self._use(result, not any(one.alias_info for one in func._schema.returns))
        return result

    def _use(self, value: Any, writes: bool) -> None:
        stream = self._cuda.current
        for tensor in tree_leaves(value):
            if not isinstance(tensor, Tensor) or not tensor.numel():
                continue
            uses = self._uses.setdefault(tensor.untyped_storage().data_ptr(), {})
            for other, (time, wrote) in uses.items():
                waited = other is stream or stream.waited.get(other, 0) >= time
                if (wrote or writes) and not waited:
                    raise RaceError(f"{tuple(tensor.shape)}, written: {writes}")
            uses[stream] = stream.time, writes or (uses.get(stream, (0, False))[1])
            self._kept.append(tensor)


class Graph:
    """A graph, which dies with its object, and reads the workspace that its stream had when it was
    captured.
    """

    def __init__(self) -> None:
        self.captured: tuple[Stream, int] | None = None

    def replay(self) -> None:
        assert self.captured is not None
        stream, workspace = self.captured
        if stream.workspace != workspace:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


class Pool:
    """Graphs that live in a pool of memory, and whether a workspace lies there, too."""

    def __init__(self) -> None:
        self.graphs, self.holds_workspace, self.known = 0, False, False


class ScriptedCuda:
    """Stand-in for streams and graphs of ``torch.cuda``.

    Attributes:
        current: The current stream.
        log: What has happened, in words.
        fails: True if captures fail when they end, such as by an operation that is not permitted.
        entered: The devices that were made current.
    """

    def __init__(self) -> None:
        self.main = self.current = Stream(self)
        self.log: list[str] = []
        self.fails = False
        self.entered: list[Any] = []
        self._pools: dict[int, Pool] = {}
        self._handles, self._workspaces = itertools.count(1), itertools.count(1)
        self.capturing: Pool | None = None

    def computed(self, result: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a function that computes as ``result`` does, with a workspace of the current
        stream.
        """

        def run() -> Tensor:
            self.log.append(
                "captured" if self.capturing else "main" if self.current is self.main else "side"
            )
            if not self.current.workspace:
                self.current.workspace = next(self._workspaces)
                if self.capturing:
                    self.capturing.holds_workspace = True
            return result()

        return run

    def graph_pool_handle(self) -> int:
        return next(self._handles)

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    debugs: int | str = 0

    def debug(self, mode: int | str) -> None:
        self.debugs = mode

    def set_stream(self, stream: Stream) -> None:
        self.current = stream

    @contextlib.contextmanager
    def device(self, device: object) -> Iterator[None]:
        self.entered.append(device)
        yield

    @contextlib.contextmanager
    def graph(self, graph: Graph, pool: int, stream: Stream | None = None) -> Iterator[None]:
        before, self.current = self.current, stream or self.__dict__.setdefault("own", Stream(self))
        known = self._pools.setdefault(pool, Pool())
        if known.known and not known.graphs:
            if known.holds_workspace:
                raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
            known = self._pools[pool] = Pool()  # it was empty, so that it has gone
        known.known, known.graphs, self.capturing = True, known.graphs + 1, known
        yield
        self.capturing = None
        if self.fails:
            known.graphs -= 1
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            )
        graph.captured = self.current, self.current.workspace
        weakref.finalize(graph, self._died, known, self.current)
        self.current = before

    def _died(self, pool: Pool, stream: Stream) -> None:
        pool.graphs -= 1
        stream.workspace = 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> ScriptedCuda:
    """Put the script in the place of torch's functions."""
    scripted = ScriptedCuda()
    monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream(scripted))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: scripted.current)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: scripted.debugs)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", scripted.debug)
    for name in ("graph", "graph_pool_handle", "stream", "set_stream", "device"):
        monkeypatch.setattr(torch.cuda, name, getattr(scripted, name))
    return scripted
