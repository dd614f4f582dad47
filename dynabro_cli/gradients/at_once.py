"""Weight gradients of a convolution for all workers at once, in a few launches whose number does not grow with m.

On a CPU a loop over workers with ``convolution_backward`` is faster, and there a launch costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

UNFOLD_BYTES = 256 << 20
"""Largest matrix of image patches that is written out for a matrix product; larger ones take a grouped convolution.

Reasoned, not measured: the patches are written and read once, which a small product does not hide.
"""


class Geometry(NamedTuple):
    """Constants of a convolution; pairs are of height and width."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int


def weight_gradients(gy: Tensor, x: Tensor, like: Sequence[int], m: int, how: Geometry) -> Tensor:
    """Return every worker's weight gradient.

    Args:
        gy: The gradients of the outputs [N, O, H', W'], N = m n samples ordered by worker.
        x: The inputs [N, C, H, W].
        like: The shape of the weights, (O, C / groups, h, w).
        m: The number of workers.
        how: The constants of the convolution.

    Returns:
        [m, O, C / groups, h, w].
    """
    patches = gy.shape[0] * gy.shape[2] * gy.shape[3] * x.shape[1] * like[2] * like[3] * x.element_size()
    if how.groups == 1 and list(how.dilation) == [1, 1] and patches <= UNFOLD_BYTES:
        return unfolded(gy, x, like, m, how)
    return grouped(gy, x, like, m, how)


def unfolded(gy: Tensor, x: Tensor, like: Sequence[int], m: int, how: Geometry) -> Tensor:
    """Multiply the gradients with the patches that each output sees, worker by worker in one batched product."""
    top, left = how.padding
    x = F.pad(x, (left, left, top, top)) if top or left else x
    patches = x.unfold(2, like[2], how.stride[0]).unfold(3, like[3], how.stride[1])  # [N, C, H', W', h, w]
    rows = patches.permute(0, 2, 3, 1, 4, 5).reshape(m, -1, like[1] * like[2] * like[3])  # [m, n H' W', C h w]
    out = gy.permute(0, 2, 3, 1).reshape(m, -1, gy.shape[1])  # [m, n H' W', O]
    return torch.bmm(out.mT, rows).view(m, *like)


def grouped(gy: Tensor, x: Tensor, like: Sequence[int], m: int, how: Geometry) -> Tensor:
    """Take the workers for groups of one convolution: sample j of all workers is one image of m C channels."""
    n = len(x) // m
    many, out = (t.view(m, n, *t.shape[1:]).transpose(0, 1).reshape(n, -1, *t.shape[2:]) for t in (x, gy))
    many, out = (t.contiguous(memory_format=torch.channels_last) for t in (many, out))
    weight = x.new_empty(m * like[0], *like[1:])
    sizes = list(how.stride), list(how.padding), list(how.dilation)
    wanted = [False, True, False]
    backward = torch.ops.aten.convolution_backward
    found = backward(out, many, weight, None, *sizes, False, [0, 0], m * how.groups, wanted)[1]
    return cast(Tensor, found).reshape(m, *like)
