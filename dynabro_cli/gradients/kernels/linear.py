"""Weight gradients of linear layers for all workers, by a compiled kernel (``linear.cpp``)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from dynabro_cli.core.machine import native

COMPILE_VALUES = 1e9
"""Products of a run above which compiling saves time: it saves at least 1 ns per hundred, and costs
about 1 s.
"""


class Products:
    """The function of the compiled library, on tensors."""

    def __init__(self, library: native.Library) -> None:
        self._library = library

    def __call__(self, gy: Tensor, x: Tensor, out: Tensor) -> bool:
        """Write gy_i^T x_i for each worker i to ``out``; return False and write nothing if the
        kernel does not serve them.

        Args:
            gy: The gradients of the outputs, [m, n, O].
            x: The inputs, [m, n, I].
            out: A view of the gradient matrix, [m, O, I].
        """
        tensors = (gy, x, out)
        if any(tensor.device.type != "cpu" or tensor.dtype != torch.float32 for tensor in tensors):
            return False
        (m, n, rows), columns = gy.shape, x.shape[2]
        if (
            not m
            or not self._library.number("serves", rows, columns)
            or out.stride()[1:] != (columns, 1)
        ):
            return False
        self._library.run(
            "products", gy.contiguous(), x.contiguous(), out, m, n, rows, columns, out.stride(0)
        )
        return True


def compiled_for(model: nn.Module, samples: float, *, insist: bool) -> Products | None:
    """Return the kernel if the model has linear layers on a CPU and the work is large enough; None
    otherwise, or if it fails.

    Args:
        model: The model.
        samples: Number of samples of the whole run.
        insist: True for any number of samples.
    """
    weights = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)]
    if not weights or weights[0].device.type != "cpu":
        return None
    enough = samples * sum(weight.numel() for weight in weights) >= COMPILE_VALUES
    return load() if insist or enough else None


def load() -> Products | None:
    """Compile and load the kernel; None if that fails."""
    library = native.library_of(Path(__file__).with_name("linear.cpp"))
    return None if library is None else Products(library)
