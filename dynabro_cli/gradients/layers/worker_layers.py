"""Layers that run all workers' samples at once and keep the workers' parameter gradients separate.

The workers share the model, so forward and backward passes run over the samples of all workers
together, ordered by worker. Only the sum of a parameter's gradient over samples is made worker by
worker. Each layer here replaces one module of ``torch.nn``, uses its parameters, and writes the
gradients of the *sum over workers of the mean loss over the worker's samples* into views of one [m,
d] matrix.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from dynabro_cli.gradients.kernels import conv_weights, linear
from dynabro_cli.gradients.kernels.fusible import Functions
from dynabro_cli.gradients.layers.at_once import Geometry, weight_gradients
from dynabro_cli.gradients.memory import send


@dataclass
class Shared:
    """State that the layers of one twin share: the grouping of a pass's samples, and the places of
    results.

    ``workers`` is the number m of workers in the current pass, and ``batches`` the number of
    mini-batches per worker. So a pass has m x batches x B samples, ordered by worker and then by
    mini-batch. If the model is random, ``generators`` has a generator for each of the m x batches
    mini-batches; on a GPU, ``seeds`` has their seeds as a tensor instead. The layers write to the
    views ``gradients`` [m, *shape], and note in ``written`` that they did. ``statistics`` maps a
    batch-norm buffer's name to [m, features] means over the worker's mini-batches of this pass.
    ``linear`` and ``convolutions`` are compiled kernels of these layers' weight gradients, if
    available. ``functions`` of batch norm and dropout may be kernels.
    """

    workers: int
    batches: int = 1
    generators: list[torch.Generator] = field(default_factory=list)
    seeds: Tensor | None = None
    gradients: dict[str, Tensor] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    statistics: dict[str, Tensor] = field(default_factory=dict)
    linear: linear.Products | None = None
    convolutions: conv_weights.Gradients | None = None
    functions: Functions = field(default_factory=Functions)

    def sow(self, seeds: Sequence[int] | Tensor, device: torch.device) -> None:
        """Set the seeds of the pass's mini-batches; empty if the model is not random."""
        self.seeds, self.generators = None, []
        if not len(seeds):
            return
        if isinstance(seeds, Tensor) or device.type == "cuda":
            self.seeds = seeds if isinstance(seeds, Tensor) else send(torch.tensor(seeds), device)
        else:
            self.generators = [torch.Generator(device).manual_seed(int(seed)) for seed in seeds]


def product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write the batched matrix product into a view of the gradient matrix."""
    if left.dtype == out.dtype:
        torch.bmm(left, right, out=out)
    else:
        out.copy_(torch.bmm(left, right))


def sum_rows(rows: Tensor, out: Tensor) -> None:
    """Write the sum over the samples of each worker into a view of the gradient matrix: [m, n, c]
    -> [m, c].
    """
    if rows.dtype == out.dtype:  # a matrix product sums twice as fast
        torch.bmm(
            rows.new_ones(1, 1, rows.shape[1]).expand(len(rows), 1, -1), rows, out=out[:, None]
        )
    else:
        torch.sum(rows, 1, dtype=out.dtype, out=out)


class _Linear(Function):
    """y = x W^T + b; the gradients of worker i are gy_i^T x_i and the column sums of gy_i."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: WorkerLinear
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (x, weight), layer, gy = ctx.saved_tensors, ctx.layer, outputs[0]
        layer.write_gradients(gy, x)
        return (gy @ weight.to(gy.dtype) if ctx.needs_input_grad[0] else None), None, None, None


class _Conv2d(Function):
    """A convolution; the weight gradients come from a compiled kernel, or from one backward
    convolution per worker.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: WorkerConv2d
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        if x.shape[1] == 1 and layer.groups == 1:
            # With one channel torch cannot tell the layouts apart and returns channels first, which
            # slows pooling.
            x, weight = F.pad(x, (0, 0, 0, 0, 0, 1)), F.pad(weight, (0, 0, 0, 0, 0, 1))
            x = x.contiguous(memory_format=torch.channels_last)
        weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
        y = F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
        return y.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (x, weight), layer = ctx.saved_tensors, ctx.layer
        gy, weight = outputs[0].contiguous(memory_format=torch.channels_last), weight.to(x.dtype)
        layer.write_gradients(gy, x, weight)
        gx = (
            layer.backward(gy, x, weight, [True, False, False])[0]
            if ctx.needs_input_grad[0]
            else None
        )
        return gx, None, None, None


class _Dropout(Function):
    """Dropout whose masks are drawn for all mini-batches at once, from their seeds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seeds: Tensor, layer: WorkerDropout) -> Tensor:
        out, kept = layer.shared.functions.drop(x, seeds, layer.number, layer.p)
        ctx.save_for_backward(kept)
        ctx.layer = layer
        return out

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (kept,), layer = ctx.saved_tensors, ctx.layer
        return (
            layer.shared.functions.drop_backward(outputs[0], kept, layer.number, layer.p),
            None,
            None,
        )


class WorkerLayer(nn.Module):
    """Common part of all layers of a twin: the replaced module and the places of its gradients."""

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, name: str, module: nn.Module, shared: Shared) -> None:
        super().__init__()
        self.name = name
        self.shared = shared
        for key, value in module.named_parameters(recurse=False):
            self.register_parameter(key, value)
        self.has_bias = getattr(module, "bias", None) is not None
        if not self.has_bias:
            self.register_parameter("bias", None)

    def gradient(self, key: str) -> Tensor:
        """Return the view [m, *shape] of the gradient matrix for this layer's parameter ``key``,
        before it is written.
        """
        name = f"{self.name}.{key}" if self.name else key
        self.shared.written.append(name)
        return self.shared.gradients[name]


class WorkerLinear(WorkerLayer):
    """Replace ``nn.Linear``."""

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _Linear.apply(x, self.weight, self.bias, self))

    def write_gradients(self, gy: Tensor, x: Tensor) -> None:
        """Write every worker's weight and bias gradients; ``x`` is [N, ..., I] and ``gy`` [N, ...,
        O].
        """
        m, kernel = self.shared.workers, self.shared.linear
        rows, inputs, out = (
            gy.reshape(m, -1, gy.shape[-1]),
            x.reshape(m, -1, x.shape[-1]),
            self.gradient("weight"),
        )
        if kernel is None or not kernel(rows, inputs, out):  # rows are [m, n, O], inputs [m, n, I]
            product(rows.mT, inputs, out)
        if self.has_bias:
            sum_rows(rows, self.gradient("bias"))


class WorkerConv2d(WorkerLayer):
    """Replace ``nn.Conv2d`` with zero padding.

    Attributes:
        followed_by: The batch norm that adds this layer's bias in training, if any (a tuple does
            not make it a submodule).
    """

    weight: Tensor
    followed_by: tuple[nn.Module, ...] = ()

    def __init__(self, name: str, module: nn.Conv2d, shared: Shared) -> None:
        super().__init__(name, module, shared)
        self.stride = list(module.stride)
        self.padding = [int(size) for size in module.padding]
        self.dilation = list(module.dilation)
        self.groups = module.groups

    @property
    def adds_bias(self) -> bool:
        """Return True if the layer has a bias, and adds it itself."""
        return self.has_bias and not any(norm.training for norm in self.followed_by)

    def forward(self, x: Tensor) -> Tensor:
        return cast(
            Tensor, _Conv2d.apply(x, self.weight, self.bias if self.adds_bias else None, self)
        )

    def backward(self, gy: Tensor, x: Tensor, weight: Tensor, wanted: list[bool]) -> list[Tensor]:
        """Return the gradients with respect to input, weight and bias, if ``wanted``."""
        return cast(
            list[Tensor],
            torch.ops.aten.convolution_backward(
                gy,
                x,
                weight,
                None,
                self.stride,
                self.padding,
                self.dilation,
                False,
                [0, 0],
                self.groups,
                wanted,
            ),
        )

    def write_gradients(self, gy: Tensor, x: Tensor, weight: Tensor) -> None:
        """Write every worker's weight and bias gradients; ``x`` is [N, C, H, W] and ``gy`` [N, O,
        H', W'].
        """
        m = self.shared.workers
        target = self.gradient("weight")
        if x.is_cuda and m > 1:
            target.copy_(
                weight_gradients(
                    gy,
                    x,
                    weight.shape,
                    m,
                    Geometry(self.stride, self.padding, self.dilation, self.groups),
                )
            )
            self._write_bias(gy)
            return
        if not self._compiled(gy, x, target):
            for worker, (part, inputs) in enumerate(zip(gy.chunk(m), x.chunk(m), strict=True)):
                target[worker].copy_(self.backward(part, inputs, weight, [False, True, False])[1])
        self._write_bias(gy)

    def _compiled(self, gy: Tensor, x: Tensor, target: Tensor) -> bool:
        """Write the weight gradients by the compiled kernel; return False and write nothing if it
        does not serve them.
        """
        kernel, plain = (
            self.shared.convolutions,
            self.groups == 1 and self.stride == self.dilation == [1, 1],
        )
        return kernel is not None and plain and kernel(gy, x, self.padding, target)

    def _write_bias(self, gy: Tensor) -> None:
        if self.adds_bias:
            # [m, n H' W', O]
            rows = gy.permute(0, 2, 3, 1).reshape(self.shared.workers, -1, gy.shape[1])
            sum_rows(rows, self.gradient("bias"))


class WorkerDropout(WorkerLayer):
    """Replace ``nn.Dropout``: an independent mask for every sample, drawn from its mini-batch's own
    generator or seed.
    """

    def __init__(self, name: str, module: nn.Dropout, shared: Shared) -> None:
        super().__init__(name, module, shared)
        self.p = module.p
        self.number = zlib.crc32(name.encode())

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        if self.p >= 1:
            return x * 0
        if self.shared.seeds is not None:
            return cast(Tensor, _Dropout.apply(x, self.shared.seeds, self))
        mask = torch.empty_like(x)
        for part, generator in zip(
            mask.chunk(len(self.shared.generators)), self.shared.generators, strict=True
        ):
            part.bernoulli_(1 - self.p, generator=generator)
        return x * mask.div_(1 - self.p)
