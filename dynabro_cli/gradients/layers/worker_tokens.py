"""Layers of transformers that run all workers' samples at once and keep the workers' parameter
gradients separate.

Attention needs no stand-in: it has no parameters besides its linear layers, and no sample sees
another.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from dynabro_cli.gradients.kernels.fusible import accurate
from dynabro_cli.gradients.layers.worker_layers import Shared, WorkerLayer, sum_rows


class _Embedding(Function):
    """Rows of a table; the gradient of worker i is the sum, for each row, over the worker's own
    samples.
    """

    @staticmethod
    def forward(ctx: Any, places: Tensor, weight: Tensor, layer: WorkerEmbedding) -> Tensor:
        ctx.save_for_backward(places)
        ctx.layer = layer
        return F.embedding(places, weight)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (places,), layer = ctx.saved_tensors, ctx.layer
        m, out = layer.shared.workers, layer.gradient("weight")  # [m, rows, width]
        rows, width = out.shape[1:]
        first = torch.arange(m, device=places.device)[:, None] * rows
        flat = (places.reshape(m, -1) + first).flatten()
        sums = (
            outputs[0].new_zeros(m * rows, width).index_add_(0, flat, outputs[0].reshape(-1, width))
        )
        out.copy_(sums.view(m, rows, width))
        return None, None, None


class _LayerNorm(Function):
    """Layer normalisation (Ba, Kiros & Hinton, 2016); only the sums over a worker's samples are
    separate.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: WorkerLayerNorm
    ) -> Tensor:
        y, mean, inverse = torch.ops.aten.native_layer_norm(
            accurate(x), layer.sizes, weight, bias, layer.eps
        )
        ctx.save_for_backward(x, mean, inverse, weight, bias)
        ctx.layer = layer
        return cast(Tensor, y.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (x, mean, inverse, weight, bias), layer = ctx.saved_tensors, ctx.layer
        gy, inputs, m = accurate(outputs[0]).contiguous(), accurate(x), layer.shared.workers
        if weight is not None:
            scaled = gy * (inputs - mean) * inverse
            sum_rows(scaled.reshape(m, -1, weight.numel()), layer.gradient("weight").view(m, -1))
        if bias is not None:
            sum_rows(gy.reshape(m, -1, bias.numel()), layer.gradient("bias").view(m, -1))
        gx = None
        if ctx.needs_input_grad[0]:
            wanted = [True, False, False]
            backward = torch.ops.aten.native_layer_norm_backward
            gx = backward(gy, inputs, layer.sizes, mean, inverse, weight, bias, wanted)[0].to(
                x.dtype
            )
        return gx, None, None, None


class WorkerEmbedding(WorkerLayer):
    """Replace ``nn.Embedding``; its places have a row for each sample, [N, ...]."""

    weight: Tensor

    def forward(self, places: Tensor) -> Tensor:
        return cast(Tensor, _Embedding.apply(places, self.weight, self))


class WorkerLayerNorm(WorkerLayer):
    """Replace ``nn.LayerNorm``."""

    def __init__(self, name: str, module: nn.LayerNorm, shared: Shared) -> None:
        super().__init__(name, module, shared)
        if not module.elementwise_affine:
            self.register_parameter("weight", None)
        self.sizes, self.eps = list(module.normalized_shape), module.eps

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _LayerNorm.apply(x, self.weight, self.bias, self))
