"""Kernels of batch norm and the ReLU before it: ``batch_norm.cpp`` on a CPU, Triton's
``norm_kernel.py`` on a GPU.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from dynabro_cli.gradients.fusible import Functions, Kept
from dynabro_cli.gradients.twin import join
from dynabro_cli.gradients.worker_layers import Shared
from dynabro_cli.gradients.worker_norms import WorkerBatchNorm2d
from dynabro_cli.machine import native

COMPILE_BYTES = 2e10
"""Bytes kept by all passes of a run above which compiling saves time: it saves 0.2 to 0.4 ns per
byte, and costs about 3 s.
"""


class BatchNorm:
    """The compiled library's two functions, on float32 tensors; they replace the two functions of
    ``fusible``.
    """

    def __init__(self, library: native.Library) -> None:
        self._library = library

    def normalise(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, relu: bool
    ) -> tuple[Tensor, Tensor, Tensor, Kept]:
        """Normalise every mini-batch by its own statistics; see ``fusible.normalise``.

        Input and statistics are kept for the backward pass.
        """
        groups, _, channels = x.shape
        x, out = x.contiguous(), torch.empty(x.shape)
        mean, variance, inverse = torch.empty(3, groups, 1, channels)
        vectors = (
            (torch.ones(channels), torch.zeros(channels))
            if weight is None
            else (weight, cast(Tensor, bias))
        )
        self._call(
            "forward", relu, [x, *vectors, out, mean, variance, inverse], ctypes.c_float(eps)
        )
        return out, mean, variance, (x, mean, inverse)

    def normalise_backward(
        self, gy: Tensor, kept: Kept, weight: Tensor | None, relu: bool, workers: int, wanted: bool
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return the gradients by input, weight and bias; see ``fusible.normalise_backward``."""
        x, mean, inverse = kept
        groups, _, channels = gy.shape
        gy, gx, (weights, biases) = (
            gy.contiguous(),
            torch.empty(gy.shape) if wanted else None,
            torch.empty(2, groups, channels),
        )
        vector = torch.ones(channels) if weight is None else weight
        self._call("backward", relu, [gy, x, mean, inverse, vector, gx, weights, biases])
        per_worker = [part.view(workers, -1, channels).sum(1) for part in (weights, biases)]
        return gx, per_worker[0], per_worker[1]

    def _call(
        self, name: str, relu: bool, tensors: list[Tensor | None], *more: ctypes.c_float
    ) -> None:
        sizes = [*cast(Tensor, tensors[0]).shape, int(relu)]
        scratch = torch.empty(self._library.number("scratch", sizes))
        self._library.run(name, sizes, scratch, *tensors, *more)


def compile_norms(model: nn.Module, shared: Shared, kept: float, *, insist: bool) -> None:
    """Compute the batch norm of a twin by the kernel, if the work is large enough for compiling it.

    Nothing is changed if compiling fails.

    Args:
        model: The twin.
        shared: The state of its layers.
        kept: Bytes that all samples of the run keep for their backward passes.
        insist: True for any number of bytes.
    """
    norms = [layer for layer in model.modules() if isinstance(layer, WorkerBatchNorm2d)]
    if not norms or not (insist or kept >= COMPILE_BYTES):
        return
    kernel = load()
    if kernel is not None:
        shared.functions = Functions(
            normalise=kernel.normalise, normalise_backward=kernel.normalise_backward
        )
        join(model)


def use_gpu_kernels(model: nn.Module, shared: Shared) -> None:
    """Compute the batch norm of a twin with the ReLU and the bias before it, and dropout, by
    Triton's kernels.
    """
    from dynabro_cli.gradients.kernels import dropout_kernel, norm_kernel  # they need Triton

    shared.functions = Functions(
        norm_kernel.normalise,
        norm_kernel.normalise_backward,
        dropout_kernel.drop,
        dropout_kernel.drop_backward,
    )
    join(model, biases=True)


def load() -> BatchNorm | None:
    """Compile and load the kernel; None if that fails."""
    library = native.library_of(Path(__file__).with_name("batch_norm.cpp"))
    return None if library is None else BatchNorm(library)
