"""Triton's kernels on a GPU: if this process can launch them, and the one function that does."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dynabro_cli.lazy import torch
from dynabro_cli.machine.devices import current

if TYPE_CHECKING:
    from torch import Tensor

MOST_ROWS = 64
"""Most messages that a block of threads holds in its registers: one value of each, or their Gram
matrix.
"""


def launch(
    kernel: Any, grid: tuple[int, ...], tensor: Tensor, *arguments: object, **constants: object
) -> None:
    """Launch ``kernel[grid](tensor, *arguments, **constants)`` on the tensor's GPU."""
    with current(tensor.device):
        kernel[grid](tensor, *arguments, **constants)


@functools.cache
def obstacle(device: torch.device) -> str | None:
    """Return why Triton's kernels cannot be launched on ``device``; None if they can.

    A kernel that does nothing is launched, once a process. The first launch compiles Triton's
    launcher, which fails without a C compiler, and compiles for this GPU and its driver, which
    fails if Triton does not know them.
    """
    if device.type != "cuda":
        return "not a GPU"
    if find_spec("triton") is None:
        return "no triton"
    try:
        import triton

        @triton.jit
        def nothing(x):  # type: ignore[no-untyped-def]
            pass

        launch(nothing, (1,), torch.empty(1, device=device))
    except Exception as error:  # of Triton, of the C compiler, of a linker or of a driver
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return None


def triton_works(*tensors: Tensor) -> bool:
    """Return True if a Triton kernel can compute from these tensors: no gradient is wanted, and
    kernels can be launched.
    """
    if not tensors[0].is_cuda or (
        torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    ):
        return False
    return obstacle(tensors[0].device) is None
