"""A capture on a CPU, as strict as a CUDA graph: operations are repeated with the tensors and
numbers of the capture, without their Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
READS = (
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.nonzero.default,
)
EMPTY = (aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default)


class Recorder(TorchDispatchMode):
    """Record the operations of a function, and repeat them."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            raise RuntimeError(f"{func}: not permitted when stream is capturing")
        given = tree_map(_as_it_is, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        aliases = [one.alias_info for one in func._schema.returns]
        writes = any(alias is not None and alias.is_write for alias in aliases)
        views = any(alias is not None for alias in aliases) and not writes
        if not views and func not in EMPTY and torch.Tag.inplace_view not in func.tags:
            made = [] if writes else list(map(_as_it_is, _tensors(result)))
            self.log.append((func, *given, made))
        return result

    def replay(self) -> None:
        for func, args, kwargs, made in self.log:
            result = func(*args, **kwargs)
            for place, value in zip(made, _tensors(result) if made else [], strict=True):
                place.copy_(value)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _as_it_is(value: Any) -> Any:
    """Return a tensor with the same memory, whose shape stays as it is."""
    return value.detach() if isinstance(value, Tensor) else value


def recorded(run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Capture a function."""
    recorder = Recorder()
    with recorder:
        result = run()
    return recorder.replay, result


def repeated(run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Capture a function that runs again at each replay."""
    return run, run()


def capturing(capture: Callable[[Callable[[], Any]], Any]) -> Any:
    """Return a class in the place of ``KernelCapture`` whose objects are ``capture``."""
    return type("Capture", (), {"failed": 0, "__new__": lambda _, device: capture})
