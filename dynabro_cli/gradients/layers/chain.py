"""Gradients of a chain of layers without autograd: the same operations in the same order, with
equal results bit for bit.

In a small network, autograd and modules take most of the time of a pass. A chain has compiled
convolution blocks, one ``nn.Flatten``, linear layers and ReLUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabro_cli.gradients.layers.conv_block import Compiled, ConvBlock
from dynabro_cli.gradients.layers.worker_layers import WorkerLinear


class Chain:
    """The layers of a twin, in their order, without ``nn.Identity``."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers

    def serves(self, x: Tensor) -> bool:
        """Return True if the chain computes on the inputs [N, c, h, w]: all its blocks are compiled
        for such images.
        """
        if x.device.type != "cpu" or x.dtype != torch.float32 or x.ndim != 4:
            return False
        shape = tuple(x.shape[1:])
        for layer in self._layers:
            if isinstance(layer, ConvBlock):
                expected = None if layer.compiled is None else layer.compiled.shape
                if expected is None or shape != (
                    expected.channels,
                    expected.height,
                    expected.width,
                ):
                    return False
                shape = expected.kernels, expected.output[0] // 2, expected.output[1] // 2
        return True

    def losses(self, x: Tensor, labels: Tensor, workers: int) -> Tensor:
        """Return the loss of each sample [N], and write the gradients of all layers.

        Args:
            x: The inputs [N, c, h, w], channels last, ordered by worker.
            labels: Class numbers, [N].
            workers: The number m of workers; each has N / m samples.
        """
        # the tensors that each layer's backward step reads
        kept: list[tuple[Tensor, Tensor | None]] = []
        for layer in self._layers:
            y, places = x, None
            if isinstance(layer, WorkerLinear):
                y = F.linear(x, cast(Tensor, layer.weight), layer.bias)
            elif isinstance(layer, ConvBlock):
                block = cast(Compiled, layer.compiled)
                y, places = block.forward(x, layer.conv.weight, layer.conv.bias, places=True)
            else:
                y = torch.relu(x) if type(layer) is nn.ReLU else x.flatten(1)
            kept.append((y if type(layer) is nn.ReLU else x, places))
            x = y
        logs = torch.log_softmax(x, 1)
        losses = F.nll_loss(logs, labels, reduction="none")
        # the gradient of a mean over a worker's samples
        share = torch.ones(()) / (len(labels) // workers)
        gy = torch.zeros_like(logs).scatter_(1, labels[:, None], -float(share))
        gy = torch.ops.aten._log_softmax_backward_data(gy, logs, 1, logs.dtype)
        for place in reversed(range(len(self._layers))):
            gy = _back(self._layers[place], gy, *kept[place], first=not place)
        return losses


def _back(layer: nn.Module, gy: Tensor, x: Tensor, places: Tensor | None, *, first: bool) -> Tensor:
    """Write a layer's gradients from its output's gradient; return its input's gradient, unless the
    layer is the first.
    """
    if isinstance(layer, WorkerLinear):
        layer.write_gradients(gy, x)
        return gy if first else gy @ cast(Tensor, layer.weight)
    if isinstance(layer, ConvBlock):
        gy = gy.contiguous(memory_format=torch.channels_last)
        bias = layer.conv.gradient("bias") if layer.conv.has_bias else None
        block = cast(Compiled, layer.compiled)
        return cast(
            Tensor,
            block.backward(
                x, layer.conv.weight, cast(Tensor, places), gy, layer.conv.gradient("weight"), bias
            ),
        )
    return (
        cast(Tensor, torch.ops.aten.threshold_backward(gy, x, 0))
        if type(layer) is nn.ReLU
        else gy.view(x.shape)
    )


def chain_of(model: nn.Module) -> Chain | None:
    """Return a twin's chain; None if it has other layers."""
    if type(model) is not nn.Sequential:
        return None
    layers = [layer for layer in model if type(layer) is not nn.Identity]
    kinds = [type(layer) for layer in layers]
    if kinds.count(nn.Flatten) != 1 or not isinstance(layers[-1], WorkerLinear):
        return None
    at = kinds.index(nn.Flatten)
    flat = cast(nn.Flatten, layers[at])
    blocks, rest = set(kinds[:at]), set(kinds[at + 1 :])
    if (
        blocks - {ConvBlock}
        or rest - {WorkerLinear, nn.ReLU}
        or (flat.start_dim, flat.end_dim) != (1, -1)
    ):
        return None
    return Chain(layers)
