"""Weight gradients of convolutions that no pooling follows, by a compiled kernel
(``conv_weights.cpp``).

With one call per worker, torch's backward convolution reaches half to nine tenths of the forward
pass's rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from dynabro_cli.core.machine import native

COMPILE_VALUES = 1e8
"""Samples times weights above which compiling saves time; a weight is multiplied at every place of
an image.
"""

CHANNELS = 7
"""Smallest number of input channels; fewer channels do not fill any processor's vectors."""


class Gradients:
    """The kernel, on tensors."""

    def __init__(self, library: native.Library) -> None:
        self._library = library

    def filled(self, channels: int) -> int:
        """Return the number of input channels in the kernel's vectors, padding included; 0 if
        padding wastes too much.
        """
        return self._library.number("filled", channels)

    def __call__(self, gy: Tensor, x: Tensor, padding: Sequence[int], out: Tensor) -> bool:
        """Write the gradients to ``out``; return False and write nothing if the kernel does not
        serve these tensors.

        Args:
            gy: The gradients of the outputs [N, O, H', W'], N = m n samples ordered by worker.
            x: The inputs [N, C, H, W], of a convolution with stride 1 and one group.
            padding: Rows of zeros above and below, and columns of zeros left and right.
            out: A view of the gradient matrix, [m, O, C, h, w].
        """
        (m, kernels, *inner), (n, channels, height, width) = out.shape, x.shape
        fits = all(
            tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in (gy, x, out)
        )
        filled = self.filled(channels)
        if not fits or not filled or not n or not out[0].is_contiguous():
            return False
        x = F.pad(x, (0, 0, 0, 0, 0, filled - channels)) if filled > channels else x
        gy, x = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (gy, x))
        sizes, library = [filled, height, width, kernels, *inner[1:], *padding], self._library
        scratch = torch.empty(library.number("scratch", sizes, library.threads, m, n // m))
        library.run("gradients", sizes, scratch, x, gy, out, channels, m, n // m, out.stride(0))
        return True


def compiled_for(weights: Sequence[Tensor], samples: float, *, insist: bool) -> Gradients | None:
    """Return the kernel if it may serve convolutions on a CPU and the work is large enough; None
    otherwise, or if it fails.

    Args:
        weights: The weights [O, C, h, w] of the convolutions that have no compiled block.
        samples: Number of samples of the whole run.
        insist: True for any number of samples.
    """
    weights = [weight for weight in weights if weight.shape[1] >= CHANNELS]
    if not weights or weights[0].device.type != "cpu":
        return None
    return (
        load()
        if insist or samples * sum(weight.numel() for weight in weights) >= COMPILE_VALUES
        else None
    )


def load() -> Gradients | None:
    """Compile and load the kernel; None if that fails."""
    library = native.library_of(Path(__file__).with_name("conv_weights.cpp"))
    return None if library is None else Gradients(library)
