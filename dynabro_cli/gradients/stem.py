"""The first layer of a network on images of one channel: convolution, ReLU and 2 x 2 max-pooling in
one.

With one input channel, a convolution has little to multiply. Its output is the network's largest
tensor, and pooling cuts it to a quarter. So the image is folded (2 x 2 pixels become four
channels), and the convolution is computed once for each of the four places in a pooling window. The
maximum of these four tensors of the pooled size needs no strided access.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from dynabro_cli.gradients.at_once import Geometry, weight_gradients
from dynabro_cli.gradients.worker_layers import WorkerConv2d, sum_rows

PLACES = ((0, 0), (0, 1), (1, 0), (1, 1))
_where_positive = torch.ops.aten.threshold_backward  # (gradient, x, 0) -> gradient if x > 0, else 0


class _Stem(Function):
    """y = max(0, the largest of the four convolutions); of equal values the first counts, as in
    ``max_pool2d``.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: WorkerStem
    ) -> Tensor:
        p = layer.conv.padding[0]
        folded = F.pixel_unshuffle(F.pad(x, (p, p, p, p)), 2).contiguous(
            memory_format=torch.channels_last
        )
        kernels = [fold(weight.to(x.dtype), place) for place in PLACES]
        bias = None if bias is None else bias.to(x.dtype)
        a, b, c, d = (
            F.conv2d(folded, kernel, bias).contiguous(memory_format=torch.channels_last)
            for kernel in kernels
        )
        upper, lower = torch.maximum(a, b), torch.maximum(c, d)
        y = torch.maximum(upper, lower).relu_()
        if not layer.training:
            return y
        ctx.save_for_backward(folded, lower.sub_(upper), b.sub_(a), d.sub_(c), y)
        ctx.layer = layer
        return y

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        folded, lower_wins, b_wins, d_wins, y = ctx.saved_tensors
        gy = _where_positive(outputs[0].contiguous(memory_format=torch.channels_last), y, 0)
        lower = _where_positive(gy, lower_wins, 0)
        upper = gy.sub_(lower)
        b, d = _where_positive(upper, b_wins, 0), _where_positive(lower, d_wins, 0)
        ctx.layer.write_gradients((upper.sub_(b), b, lower.sub_(d), d), folded)
        return None, None, None, None


def fold(weight: Tensor, place: tuple[int, int]) -> Tensor:
    """Return the kernel on the folded image for one place in the window: [C, 1, k, k] -> [C, 4,
    (k+1)/2, (k+1)/2].
    """
    i, j = place
    return F.pixel_unshuffle(F.pad(weight, (j, 1 - j, i, 1 - i)), 2).contiguous(
        memory_format=torch.channels_last
    )


class WorkerStem(nn.Module):
    """Replace a ``WorkerConv2d`` on one channel, ``nn.ReLU`` and ``nn.MaxPool2d(2)`` in a row."""

    def __init__(self, conv: WorkerConv2d) -> None:
        super().__init__()
        self.conv = conv

    @staticmethod
    def serves(conv: nn.Module, relu: nn.Module, pool: nn.Module) -> bool:
        """Return True if these three layers can be replaced; only ``forward`` sees the image's
        size.
        """
        if not isinstance(conv, WorkerConv2d):
            return False
        _, channels, height, width = conv.weight.shape
        return (
            channels == conv.groups == 1
            and height == width
            and height % 2 == 1
            and conv.stride == conv.dilation == [1, 1]
            and conv.padding[0] == conv.padding[1]
            and type(relu) is nn.ReLU
            and type(pool) is nn.MaxPool2d
            and (pool.kernel_size, pool.stride, pool.padding, pool.dilation) == (2, 2, 0, 1)
            and not pool.return_indices
        )

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad or x.shape[2] % 2 or x.shape[3] % 2:
            return F.max_pool2d(F.relu(self.conv(x)), 2)
        return cast(Tensor, _Stem.apply(x, self.conv.weight, self.conv.bias, self))

    def write_gradients(self, gys: tuple[Tensor, ...], folded: Tensor) -> None:
        """Write every worker's weight and bias gradients; ``gys`` [N, C, h, w] are the gradients of
        the four convolutions.
        """
        m, target = self.conv.shared.workers, self.conv.gradient("weight")
        channels, _, k, _ = target.shape[1:]
        gy = torch.cat(gys, 1)  # [N, 4 C, h, w], channels last
        kernel = folded.new_empty(4 * channels, 4, (k + 1) // 2, (k + 1) // 2)
        if folded.is_cuda and m > 1:
            target.copy_(self.at_once(gy, folded, kernel.shape, m, k))
            self._write_bias(gy, channels)
            return
        target.zero_()
        for worker, (part, inputs) in enumerate(zip(gy.chunk(m), folded.chunk(m), strict=True)):
            four = self.backward(part, inputs, kernel)
            for (i, j), gradient in zip(PLACES, F.pixel_shuffle(four, 2).chunk(4), strict=True):
                target[worker] += gradient[:, :, i : i + k, j : j + k]
        self._write_bias(gy, channels)

    def _write_bias(self, gy: Tensor, channels: int) -> None:
        if self.conv.has_bias:
            # [m, n h w 4, C]
            rows = gy.permute(0, 2, 3, 1).reshape(self.conv.shared.workers, -1, channels)
            sum_rows(rows, self.conv.gradient("bias"))

    @staticmethod
    def at_once(gy: Tensor, folded: Tensor, kernel: Sequence[int], m: int, k: int) -> Tensor:
        """Return the weight gradients [m, C, 1, k, k] of all workers."""
        four = weight_gradients(gy, folded, kernel, m, Geometry([1, 1], [0, 0], [1, 1], 1))
        places = F.pixel_shuffle(four.flatten(0, 1), 2).view(m, 4, -1, 1, k + 1, k + 1)
        shifted = [
            places[:, place, :, :, i : i + k, j : j + k] for place, (i, j) in enumerate(PLACES)
        ]
        return (shifted[0] + shifted[1]) + (shifted[2] + shifted[3])

    @staticmethod
    def backward(gy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the four convolutions' kernels, [4 C, 4, ...]."""
        ones, zeros = [1, 1], [0, 0]
        wanted = [False, True, False]
        arguments = (gy, x, weight, None, ones, zeros, ones, False, zeros, 1, wanted)
        return cast(Tensor, torch.ops.aten.convolution_backward(*arguments)[1])
