"""State of a module, to be put back after ``forward``, and torch's global settings.

A worker's pass begins from the server's parameters and buffers, whatever earlier passes did to the
module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class ModuleState:
    """Parameters, buffers and submodules of a module as they are now: the objects behind the names,
    their places in memory and their numbers.
    """

    def __init__(self, module: nn.Module) -> None:
        # a scripted module has tables of another type, and keeps its objects
        self._tables = [
            (f"{prefix}." if prefix else "", table, dict(table))
            for prefix, part in module.named_modules()
            for table in (part._parameters, part._buffers, part._modules)
            if isinstance(table, dict)
        ]
        self._tensors = [
            (name, tensor, tensor.data, tensor.data.clone(), tensor._version)
            for name, tensor in (*module.named_parameters(), *module.named_buffers())
        ]

    def changed(self) -> list[str]:
        """Return the names whose object, memory or numbers are others now; a write of the same
        numbers in place counts, too.
        """
        return [
            name
            for name, tensor, place, numbers, version in self._tensors
            if tensor._version != version
            or not (tensor.is_set_to(place) and same(tensor.data, numbers))
        ] + [
            prefix + name
            for prefix, table, before in self._tables
            for name in {**before, **table}
            if table.get(name) is not before.get(name)
        ]

    def put_back(self) -> None:
        """Give the module its state back."""
        for _, table, before in self._tables:
            table.clear()
            table.update(before)
        for _, tensor, place, numbers, _ in self._tensors:
            if not tensor.is_set_to(place):
                tensor.data = place
            place.copy_(numbers)


def same(first: Tensor, second: Tensor) -> bool:
    """Return True if two tensors of a shape have the same numbers; NaN equals NaN."""
    return not bool(((first != second) & ((first == first) | (second == second))).any())


@contextlib.contextmanager
def torch_defaults(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Compute without the caller's autocast and inference mode, and with a default type and device
    for new tensors; put back all of them.
    """
    before = torch.empty(0)  # ten times faster than asking for each of its settings
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if before.is_inference():
            stack.enter_context(torch.inference_mode(mode=False))
        # torch calls a Python function for each operation while a default device is set
        if before.device.type != "cpu":
            stack.enter_context(device)
        if before.dtype != dtype:
            torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            if torch.get_default_dtype() != before.dtype:
                torch.set_default_dtype(before.dtype)
    if torch.empty(0).device != before.device:
        torch.set_default_device(before.device)
