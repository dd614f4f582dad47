"""Weight gradients of a convolution for all workers on a GPU, in one of two ways.

On a CPU a loop over workers with ``convolution_backward`` is faster, because launches cost nothing
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

UNFOLDED_BYTES = {4: 16 << 20, 2: 2 << 20}
"""Largest patches of one worker for ``unfolded``, by the bytes of a number. On an H200, ``looped``
is faster from 19 MB on in single precision, and takes twice the time for 7 MB. In half precision it
is faster from 3.5 MB on, the smallest measured (``benchmarks/README.md``, "One H200").
"""
CHUNK_BYTES = 1 << 30
"""Memory of the image patches that ``unfolded`` writes out at a time, unless one worker's patches
are larger.
"""


class Geometry(NamedTuple):
    """Constants of a convolution; pairs are (height, width)."""

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
    plain = how.groups == 1 and list(how.dilation) == [1, 1]
    small = plain and bytes_of_patches(gy, x, like) <= m * UNFOLDED_BYTES.get(
        x.element_size(), UNFOLDED_BYTES[4]
    )
    return (unfolded if small else looped)(gy, x, like, m, how)


def bytes_of_patches(gy: Tensor, x: Tensor, like: Sequence[int]) -> int:
    """Return the bytes of the overlapping patches of all images that the outputs see."""
    return (
        gy.shape[0] * gy.shape[2] * gy.shape[3] * x.shape[1] * like[2] * like[3] * x.element_size()
    )


def unfolded(gy: Tensor, x: Tensor, like: Sequence[int], m: int, how: Geometry) -> Tensor:
    """Multiply the gradients with the patches that each output sees, for some workers at a time in
    one batched product.

    This works for one group without dilation.
    """
    step = max(1, m * CHUNK_BYTES // max(1, bytes_of_patches(gy, x, like)))
    if step >= m:
        return _product_with_patches(gy, x, like, m, how)
    n, gradients = len(x) // m, gy.new_empty(m, *like)
    for start in range(0, m, step):
        part = gradients[start : start + step]
        rows = slice(start * n, (start + len(part)) * n)
        part.copy_(_product_with_patches(gy[rows], x[rows], like, len(part), how))
    return gradients


def _product_with_patches(
    gy: Tensor, x: Tensor, like: Sequence[int], m: int, how: Geometry
) -> Tensor:
    top, left = how.padding
    x = F.pad(x, (left, left, top, top)) if top or left else x
    # [N, C, H', W', h, w]
    patches = x.unfold(2, like[2], how.stride[0]).unfold(3, like[3], how.stride[1])
    # [m, n H' W', C h w]
    rows = patches.permute(0, 2, 3, 1, 4, 5).reshape(m, -1, like[1] * like[2] * like[3])
    out = gy.permute(0, 2, 3, 1).reshape(m, -1, gy.shape[1])  # [m, n H' W', O]
    return torch.bmm(out.mT, rows).view(m, *like)


def looped(gy: Tensor, x: Tensor, like: Sequence[int], m: int, how: Geometry) -> Tensor:
    """Compute one convolution after another; in a captured graph, their launches cost nothing."""
    weight, sizes = x.new_empty(like), (list(how.stride), list(how.padding), list(how.dilation))
    more, backward = (
        (False, [0, 0], how.groups, [False, True, False]),
        torch.ops.aten.convolution_backward,
    )
    pairs = zip(gy.chunk(m), x.chunk(m), strict=True)
    gradients = [backward(part, inputs, weight, None, *sizes, *more)[1] for part, inputs in pairs]
    # A GPU puts vectors together in one launch, but tensors of five dimensions, as ``stack`` needs,
    # one after another. The gradients are vectors without a copy, as they are stored channels last.
    rows = torch.cat([gradient.permute(0, 2, 3, 1).flatten() for gradient in gradients])
    return rows.view(m, like[0], like[2], like[3], like[1]).permute(0, 1, 4, 2, 3)
