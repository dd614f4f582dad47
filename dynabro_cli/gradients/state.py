"""State of a module, to be put back after ``forward``, and torch's global settings.

A worker's pass begins from the server's parameters and buffers, whatever earlier passes did to the
module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dynabro_cli.core.registration.interactive import digest_of


class ModuleState:
    """Parameters, buffers and submodules of a module as they are now: the objects behind the names,
    their places in memory and their numbers.
    """

    def __init__(self, module: nn.Module) -> None:
        # a scripted module has tables of another type, and keeps its objects
        self._tables: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (table, dict(table))
            for part in module.modules()
            for table in (part._parameters, part._buffers, part._modules)
            if isinstance(table, dict)
        ]
        self._tensors = [
            (tensor, tensor.data, tensor.data.clone())
            for tensor in (*module.parameters(), *module.buffers())
        ]

    def put_back(self) -> None:
        """Give the module its state back."""
        for table, before in self._tables:
            table.clear()
            table.update(before)
        for tensor, place, numbers in self._tensors:
            if not tensor.is_set_to(place):
                tensor.data = place
            place.copy_(numbers)


def marks(module: nn.Module) -> dict[str, object]:
    """Return what shows a change of each parameter, buffer and submodule, by name: the object, its
    memory and its numbers; a write of the same numbers in place counts, too.
    """
    named = *module.named_parameters(), *module.named_buffers(), *module.named_modules()
    return {
        name: (id(x), isinstance(x, Tensor) and (x._version, x.data_ptr(), digest_of(x)))
        for name, x in named
    }


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
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before.dtype)
    if torch.empty(0).device != before.device:
        torch.set_default_device(before.device)
