"""Layers that run all workers' samples at once and keep the parameter gradients of the workers apart.

The workers share the model, so forward and backward passes run over the samples of all of them together, ordered by
worker; only the reduction of a parameter's gradient over samples is done worker by worker. Each layer here stands in for
one module of ``torch.nn``, uses its parameters, and writes the gradients of the *sum over workers of the mean loss over the
worker's samples* into views of one [m, d] matrix. ``twin`` swaps the modules of a model; what it cannot swap, it refuses.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function


class UnsupportedError(Exception):
    """The model has a layer with parameters that no stand-in exists for."""


@dataclass
class Shared:
    """What the stand-ins of one model share: how the samples of a pass are grouped, and where results go.

    ``workers`` and ``batches`` are the number of workers m and of mini-batches a worker in the current pass, so that a pass
    has m x batches x B samples, ordered by worker and then by mini-batch. ``gradients`` are the views [m, *shape] that
    the layers write to, each of which notes in ``written`` that it did. ``statistics`` maps a batch-norm buffer's name
    to [m, features] means over the worker's mini-batches of this pass.
    """

    workers: int
    batches: int = 1
    generator: torch.Generator | None = None
    gradients: dict[str, Tensor] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    statistics: dict[str, Tensor] = field(default_factory=dict)


class _Linear(Function):
    """y = x W^T + b; the gradients of worker i are gy_i^T x_i and the column sums of gy_i."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: WorkerLinear) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (x, weight), layer, gy = ctx.saved_tensors, ctx.layer, outputs[0]
        m = layer.shared.workers
        rows = gy.reshape(m, -1, gy.shape[-1])  # [m, n, out]
        torch.bmm(rows.mT, x.reshape(m, -1, x.shape[-1]), out=layer.gradient("weight"))
        if layer.has_bias:
            torch.sum(rows, 1, out=layer.gradient("bias"))
        return (gy @ weight if ctx.needs_input_grad[0] else None), None, None, None


class _Conv2d(Function):
    """A convolution; the weight gradients come from one backward convolution a worker."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: WorkerConv2d) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        if x.shape[1] == 1 and layer.groups == 1:
            # With one channel torch cannot tell the layouts apart and answers channels first, which pooling pays for.
            x, weight = F.pad(x, (0, 0, 0, 0, 0, 1)), F.pad(weight, (0, 0, 0, 0, 0, 1))
            x = x.contiguous(memory_format=torch.channels_last)
        y = F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
        return y.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (x, weight), layer = ctx.saved_tensors, ctx.layer
        gy = outputs[0].contiguous(memory_format=torch.channels_last)
        layer.write_gradients(gy, x, weight)
        gx = layer.backward(gy, x, weight, [True, False, False])[0] if ctx.needs_input_grad[0] else None
        return gx, None, None, None


class _BatchNorm2d(Function):
    """Batch normalisation of every mini-batch by its own statistics (Ioffe & Szegedy, 2015)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: WorkerBatchNorm2d) -> Tensor:
        groups = layer.grouped(x)  # [m * batches, B * H * W, C]
        variance, mean = torch.var_mean(groups, 1, keepdim=True, correction=0)
        inverse = (variance + layer.eps).rsqrt()
        normal = (groups - mean) * inverse
        layer.record(mean, variance, groups.shape[1])
        ctx.save_for_backward(normal, inverse, weight)
        ctx.layer = layer
        out = normal if weight is None else torch.addcmul(cast(Tensor, bias), normal, weight)
        return layer.ungrouped(out, x)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        normal, inverse, weight = ctx.saved_tensors
        layer = ctx.layer
        gy = layer.grouped(outputs[0])
        sum_gy, sum_gy_normal = gy.sum(1, keepdim=True), (gy * normal).sum(1, keepdim=True)
        if weight is not None:
            m, features = layer.shared.workers, gy.shape[2]
            torch.sum(sum_gy_normal.view(m, -1, features), 1, out=layer.gradient("weight"))
            torch.sum(sum_gy.view(m, -1, features), 1, out=layer.gradient("bias"))
        gx = None
        if ctx.needs_input_grad[0]:
            scale = inverse if weight is None else inverse * weight
            n = gy.shape[1]
            gx = layer.ungrouped(scale * (gy - (sum_gy + normal * sum_gy_normal) / n), outputs[0])
        return gx, None, None, None


class _WorkerLayer(nn.Module):
    """What the stand-ins have in common: the module they stand for, and their gradients' places."""

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
        """The view [m, *shape] of the gradient matrix for this layer's parameter ``key``, which is about to be written."""
        name = f"{self.name}.{key}" if self.name else key
        self.shared.written.append(name)
        return self.shared.gradients[name]


class WorkerLinear(_WorkerLayer):
    """Stands in for ``nn.Linear``."""

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _Linear.apply(x, self.weight, self.bias, self))


class WorkerConv2d(_WorkerLayer):
    """Stands in for ``nn.Conv2d`` with zero padding."""

    def __init__(self, name: str, module: nn.Conv2d, shared: Shared) -> None:
        if module.padding_mode != "zeros" or isinstance(module.padding, str):
            raise UnsupportedError(f"{name}: padding {module.padding!r} of mode {module.padding_mode!r}")
        super().__init__(name, module, shared)
        self.stride = list(module.stride)
        self.padding = list(module.padding)
        self.dilation = list(module.dilation)
        self.groups = module.groups

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _Conv2d.apply(x, self.weight, self.bias, self))

    def backward(self, gy: Tensor, x: Tensor, weight: Tensor, wanted: list[bool]) -> list[Tensor]:
        """The gradients by input, weight and bias, those that are ``wanted``."""
        return cast(
            list[Tensor],
            torch.ops.aten.convolution_backward(
                gy, x, weight, None, self.stride, self.padding, self.dilation, False, [0, 0], self.groups, wanted
            ),
        )

    def write_gradients(self, gy: Tensor, x: Tensor, weight: Tensor) -> None:
        """Write every worker's weight and bias gradients; ``x`` is [N, C, H, W] and ``gy`` [N, O, H', W']."""
        m = self.shared.workers
        target = self.gradient("weight")
        for worker, (part, inputs) in enumerate(zip(gy.chunk(m), x.chunk(m), strict=True)):
            target[worker].copy_(self.backward(part, inputs, weight, [False, True, False])[1])
        if self.has_bias:
            rows = gy.permute(0, 2, 3, 1).reshape(m, -1, gy.shape[1])  # [m, n H' W', O]
            torch.sum(rows, 1, out=self.gradient("bias"))


class WorkerBatchNorm2d(_WorkerLayer):
    """Stands in for ``nn.BatchNorm2d`` in training: every mini-batch of every worker by its own statistics."""

    def __init__(self, name: str, module: nn.BatchNorm2d, shared: Shared) -> None:
        super().__init__(name, module, shared)
        if not module.affine:
            self.register_parameter("weight", None)
        self.eps = module.eps
        self.tracks = module.track_running_stats

    def grouped(self, x: Tensor) -> Tensor:
        """View [N, C, H, W] as [m * batches, B * H * W, C]."""
        return x.permute(0, 2, 3, 1).reshape(self.shared.workers * self.shared.batches, -1, x.shape[1])

    def ungrouped(self, groups: Tensor, like: Tensor) -> Tensor:
        """Undo ``grouped``; the result has the shape of ``like`` and is stored channels last."""
        n, c, h, w = like.shape
        return groups.reshape(n, h, w, c).permute(0, 3, 1, 2)

    def record(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Keep each worker's statistics, averaged over its mini-batches (unbiased variance, as torch's buffers hold)."""
        if self.tracks:
            m, features = self.shared.workers, mean.shape[2]
            unbiased = variance * (count / max(count - 1, 1))
            self.shared.statistics[f"{self.name}.running_mean"] = mean.view(m, -1, features).mean(1)
            self.shared.statistics[f"{self.name}.running_var"] = unbiased.view(m, -1, features).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _BatchNorm2d.apply(x, self.weight, self.bias, self))


class WorkerDropout(_WorkerLayer):
    """Stands in for ``nn.Dropout``: an independent mask for every sample, drawn from the run's own generator."""

    def __init__(self, name: str, module: nn.Dropout, shared: Shared) -> None:
        super().__init__(name, module, shared)
        self.p = module.p

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.shared.generator)
        return x * mask.div_(1 - self.p) if self.p < 1 else x * 0


_STAND_INS: dict[type[nn.Module], Callable[[str, Any, Shared], nn.Module]] = {
    nn.Linear: WorkerLinear,
    nn.Conv2d: WorkerConv2d,
    nn.BatchNorm2d: WorkerBatchNorm2d,
    nn.Dropout: WorkerDropout,
}


def twin(model: nn.Module, shared: Shared) -> nn.Module:
    """Copy ``model`` with every layer that has parameters or randomness replaced; parameters stay shared.

    Raises:
        UnsupportedError: A module has no stand-in and has parameters, buffers, or randomness of its own, or mixes samples;
            or two modules share a parameter.
    """
    memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, cast(dict[int, Any], memo))
    if len(list(copied.named_parameters(remove_duplicate=False))) != len(list(copied.parameters())):
        raise UnsupportedError("two layers share a parameter")
    for name, module in list(copied.named_modules()):
        stand_in = _STAND_INS.get(type(module))
        if stand_in is None:
            own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            if own or _is_random(module) or isinstance(module, nn.modules.batchnorm._BatchNorm):
                raise UnsupportedError(f"{name or 'model'}: {type(module).__name__}")
        elif name:
            copied.set_submodule(name, stand_in(name, module, shared))
        else:
            copied = stand_in(name, module, shared)
    return copied


def _is_random(module: nn.Module) -> bool:
    return "dropout" in type(module).__name__.lower() or isinstance(module, nn.RReLU)
