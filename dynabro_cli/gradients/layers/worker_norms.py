"""Normalisation layers that run all workers' samples at once and keep the workers' parameter
gradients separate.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from dynabro_cli.gradients.kernels.fusible import accurate
from dynabro_cli.gradients.layers.worker_layers import Shared, WorkerConv2d, WorkerLayer


class _BatchNorm2d(Function):
    """Batch normalisation of every mini-batch by its own statistics, after ReLU if the layer is
    joined with one.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: WorkerBatchNorm2d
    ) -> Tensor:
        groups = layer.grouped(x)  # [m * batches, B * H * W, C]
        before = [conv.bias for conv in layer.after]
        out, mean, variance, kept = layer.shared.functions.normalise(
            groups, weight, bias, layer.eps, layer.relu, *before
        )
        layer.record(mean, variance, groups.shape[1])
        ctx.save_for_backward(weight, *kept)
        ctx.layer = layer
        return layer.ungrouped(out, x)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (weight, *kept), layer = ctx.saved_tensors, ctx.layer
        groups, backward, workers = (
            layer.grouped(outputs[0]),
            layer.shared.functions.normalise_backward,
            layer.shared.workers,
        )
        gx, *of_layers = backward(
            groups, tuple(kept), weight, layer.relu, workers, ctx.needs_input_grad[0]
        )
        if weight is not None and weight.requires_grad:
            for name, gradient in zip(("weight", "bias"), of_layers[:2], strict=True):
                layer.gradient(name).copy_(gradient)
        for conv, gradient in zip(layer.after, of_layers[2:], strict=True):
            conv.gradient("bias").copy_(gradient)
        return (None if gx is None else layer.ungrouped(gx, outputs[0])), None, None, None


class _GroupNorm(Function):
    """Group normalisation of every sample (Wu & He, 2018); only the sums over a worker's samples
    are separate.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: WorkerGroupNorm
    ) -> Tensor:
        y, mean, inverse = torch.ops.aten.native_group_norm(
            accurate(x), weight, bias, *layer.sizes(x), layer.groups, layer.eps
        )
        ctx.save_for_backward(x, mean, inverse, weight)
        ctx.layer = layer
        return cast(Tensor, y.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (x, mean, inverse, weight), layer = ctx.saved_tensors, ctx.layer
        gy, inputs = accurate(outputs[0]).contiguous(memory_format=layout(x)), accurate(x)
        if weight is not None:
            channels = x.shape[1]
            sums, products = sum_positions(gy), sum_positions(gy * inputs)  # [N, C]
            means, scales = (
                part.repeat_interleave(channels // layer.groups, 1) for part in (mean, inverse)
            )
            m = layer.shared.workers
            torch.sum(
                (scales * (products - means * sums)).view(m, -1, channels),
                1,
                out=layer.gradient("weight"),
            )
            torch.sum(sums.view(m, -1, channels), 1, out=layer.gradient("bias"))
        gx = None
        if ctx.needs_input_grad[0]:
            backward = torch.ops.aten.native_group_norm_backward
            gx, _, _ = backward(
                gy,
                inputs,
                mean,
                inverse,
                weight,
                *layer.sizes(x),
                layer.groups,
                [True, False, False],
            )
        return (None if gx is None else gx.to(x.dtype)), None, None, None


def sum_positions(x: Tensor) -> Tensor:
    """Return the sum over everything except samples and channels: [N, C, ...] -> [N, C]."""
    return x.flatten(2).sum(2) if x.ndim > 2 else x


def layout(x: Tensor) -> torch.memory_format:
    """Return the memory format of ``x``."""
    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


class WorkerBatchNorm2d(WorkerLayer):
    """Replace ``nn.BatchNorm2d``; in training every mini-batch of every worker uses its own
    statistics.

    Attributes:
        relu: True if the layer is joined with a ReLU before it.
        after: The convolution before it whose bias it adds in training, if any (a tuple does not
            make it a submodule).
    """

    relu = False
    after: tuple[WorkerConv2d, ...] = ()
    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(self, name: str, module: nn.BatchNorm2d, shared: Shared) -> None:
        super().__init__(name, module, shared)
        if not module.affine:
            self.register_parameter("weight", None)
        self.eps = module.eps
        self.tracks = module.track_running_stats
        self.register_buffer("running_mean", module.running_mean)
        self.register_buffer("running_var", module.running_var)

    def grouped(self, x: Tensor) -> Tensor:
        """View [N, C, H, W] as [m * batches, B * H * W, C]."""
        return x.permute(0, 2, 3, 1).reshape(
            self.shared.workers * self.shared.batches, -1, x.shape[1]
        )

    def ungrouped(self, groups: Tensor, like: Tensor) -> Tensor:
        """Undo ``grouped``; the result has the shape of ``like`` and is stored channels last."""
        n, c, h, w = like.shape
        return groups.reshape(n, h, w, c).permute(0, 3, 1, 2)

    def record(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Keep each worker's statistics, averaged over its mini-batches (unbiased variance, as in
        torch's buffers).
        """
        if self.tracks:
            m, features = self.shared.workers, mean.shape[2]
            unbiased = variance * (count / max(count - 1, 1))
            self.shared.statistics[f"{self.name}.running_mean"] = mean.view(m, -1, features).mean(1)
            self.shared.statistics[f"{self.name}.running_var"] = unbiased.view(
                m, -1, features
            ).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            statistics, x = (self.running_mean, self.running_var), torch.relu(x) if self.relu else x
            return F.batch_norm(
                x, *statistics, self.weight, self.bias, training=not self.tracks, eps=self.eps
            )
        return cast(Tensor, _BatchNorm2d.apply(x, self.weight, self.bias, self))


class WorkerGroupNorm(WorkerLayer):
    """Replace ``nn.GroupNorm``."""

    def __init__(self, name: str, module: nn.GroupNorm, shared: Shared) -> None:
        super().__init__(name, module, shared)
        if not module.affine:
            self.register_parameter("weight", None)
        self.groups, self.eps = module.num_groups, module.eps

    def sizes(self, x: Tensor) -> tuple[int, int, int]:
        """Return N, C and the number of values per channel of ``x`` [N, C, ...]."""
        return x.shape[0], x.shape[1], x[0, 0].numel()

    def forward(self, x: Tensor) -> Tensor:
        return cast(
            Tensor,
            _GroupNorm.apply(x.contiguous(memory_format=layout(x)), self.weight, self.bias, self),
        )
