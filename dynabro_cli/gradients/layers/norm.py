"""Kernels of batch norm and the ReLU before it: ``batch_norm.cpp`` on a CPU, Triton's
``norm_kernel.py`` on a GPU.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from dynabro_cli.core.machine import gpu_kernels, native
from dynabro_cli.gradients.kernels import fusible
from dynabro_cli.gradients.kernels.fusible import Functions, Kept
from dynabro_cli.gradients.layers.twin import join
from dynabro_cli.gradients.layers.worker_layers import Shared
from dynabro_cli.gradients.layers.worker_norms import WorkerBatchNorm2d

COMPILE_BYTES = 2e10
"""Bytes kept by all passes of a run above which compiling saves time: it saves 0.2 to 0.4 ns per
byte, and costs about 3 s.
"""
CLOSE, HALF = 1e-4, 2.0**-8
"""Largest legal error of Triton's kernels, relative to the largest number of a result, and of a
rounding to bfloat16.
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
    Triton's kernels, except for kernels that are off.
    """
    from dynabro_cli.gradients.kernels import dropout_kernel, norm_kernel  # they need Triton

    functions: dict[str, Callable[..., Any]] = {}
    if "dropout" not in gpu_kernels.off:
        functions |= {"drop": drop, "drop_backward": dropout_kernel.drop_backward}
    if "norm" not in gpu_kernels.off:
        functions |= {
            "normalise": normalise,
            "normalise_backward": norm_kernel.normalise_backward,
        }
        join(model, biases=True)
    else:  # only the kernel adds the bias of a convolution
        for layer in model.modules():
            if isinstance(layer, WorkerBatchNorm2d):
                for conv in layer.after:
                    conv.followed_by = ()
                layer.after = ()
    shared.functions = Functions(**functions)


def normalise(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    relu: bool,
    *before: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Kept]:
    """Compute ``norm_kernel.normalise``; raise KernelOffError if it is not equal to torch."""
    from dynabro_cli.gradients.kernels import norm_kernel  # it needs Triton

    def results(functions: Any, x: Tensor, gy: Tensor, scale: Any, *more: Any) -> list[Tensor]:
        *out, kept = functions.normalise(x, scale, *more)
        return [*out, *functions.normalise_backward(gy, kept, scale, relu, 1, True)]

    def compared(result: tuple[Any, ...]) -> gpu_kernels.Compared:
        """Compare the last mini-batch, and its gradients, with double precision."""
        last, gy = x[-1:], x[-1:].flip(1)
        values = sum(before, last.double())
        scale, shift = (None if part is None else part.double() for part in (weight, bias))
        ours = results(norm_kernel, last, gy, weight, bias, eps, relu, *before)
        exact = results(fusible, values, gy.double(), scale, shift, eps, relu)
        exact.append(exact[3].sum(1))  # of the bias before
        sizes = [part.abs().amax() for part in exact]
        sizes[6] = sizes[3] * math.sqrt(x.shape[1])  # only rounding may be left of such a sum
        parts = [*zip(ours, exact, sizes, strict=False), (result[0][-1:], exact[0], sizes[0])]
        for part, other, size in parts:
            half = HALF * other.abs() if part.dtype == torch.bfloat16 else 0.0
            yield part, other, CLOSE * size + half

    checked: tuple[Tensor, Tensor, Tensor, Kept] = gpu_kernels.checked(
        "norm",
        (x.shape[1:], x.dtype, weight is None, relu, len(before)),
        lambda: norm_kernel.normalise(x, weight, bias, eps, relu, *before),
        gpu_kernels.refuse,
        compared=compared,
    )
    return checked


def drop(x: Tensor, seeds: Tensor, layer: int, p: float) -> tuple[Tensor, Tensor]:
    """Compute ``dropout_kernel.drop``; raise KernelOffError if it is not equal to torch."""
    from dynabro_cli.gradients.kernels import dropout_kernel

    checked: tuple[Tensor, Tensor] = gpu_kernels.checked(
        "dropout",
        (x.shape[1:], x.dtype, layer, p),
        lambda: dropout_kernel.drop(x, seeds, layer, p),
        gpu_kernels.refuse,
        compared=lambda result: [(result[0], fusible.drop(x, seeds, layer, p)[0], 0.0)],
    )
    return checked


def load() -> BatchNorm | None:
    """Compile and load the kernel; None if that fails."""
    library = native.library_of(Path(__file__).with_name("batch_norm.cpp"))
    return None if library is None else BatchNorm(library)
