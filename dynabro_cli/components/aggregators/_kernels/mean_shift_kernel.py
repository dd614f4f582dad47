# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Mean shift as one kernel of a GPU, so that the host does not wait for the workers' signs."""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine import gpu_kernels

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def distances(a0, a1, a2, b0, b1, b2):
    """Return the distances [M, M] of points a from points b, each given by three coordinates
    [M].
    """
    x = a0[:, None] - b0[None, :]
    y = a1[:, None] - b1[None, :]
    z = a2[:, None] - b2[None, :]
    return tl.sqrt(x * x + y * y + z * z)


@triton.jit
def shift(points, chosen, slack: tl.float64, most_steps, m, M: tl.constexpr):
    """Write the mask [m] of the largest cluster; ``largest_cluster`` in ``signguard`` does the
    same, line by line.

    ``M`` is the power of two that the m workers are padded to. ``slack`` needs its type: without
    it, Triton would use single precision, in which 1 + ``slack`` is 1.
    """
    i = tl.arange(0, M)
    inside = i < m
    both = inside[:, None] & inside[None, :]
    p0 = tl.load(points + 3 * i, mask=inside, other=0.0)
    p1 = tl.load(points + 3 * i + 1, mask=inside, other=0.0)
    p2 = tl.load(points + 3 * i + 2, mask=inside, other=0.0)
    ordered = tl.sort(tl.where(both, distances(p0, p1, p2, p0, p1, p2), float("inf")))
    place = tl.maximum(m // 2, 1) - 1
    radii = tl.sum(tl.where(i[None, :] == place, ordered, 0.0), 1)
    bandwidth = tl.sum(tl.where(inside, radii, 0.0), 0) / m * (1 + slack) + slack
    s0 = p0
    s1 = p1
    s2 = p2
    step = 0
    moves = 1
    while (moves > 0) & (step < most_steps):
        near = tl.where(both & (distances(s0, s1, s2, p0, p1, p2) <= bandwidth), 1.0, 0.0).to(
            tl.float64
        )
        count = tl.maximum(tl.sum(near, 1), 1.0)
        t0 = tl.sum(near * p0[None, :], 1) / count
        t1 = tl.sum(near * p1[None, :], 1) / count
        t2 = tl.sum(near * p2[None, :], 1) / count
        moves = tl.sum((inside & ((t0 != s0) | (t1 != s1) | (t2 != s2))).to(tl.int32), 0)
        s0 = t0
        s1 = t1
        s2 = t2
        step += 1
    near = (both & (distances(s0, s1, s2, p0, p1, p2) <= bandwidth)).to(tl.int32)
    sizes = tl.where(inside, tl.sum(near, 1), -1)
    summit = tl.min(tl.where(sizes == tl.max(sizes, 0), i, M), 0)
    tl.store(
        chosen + i, tl.sum(tl.where(i[:, None] == summit, near, 0), 0).to(tl.int8), mask=inside
    )


def cluster_of(features: "Tensor", slack: float, most_steps: int) -> "Tensor":
    """Return the mask [m] of the largest cluster of points [m, 3] on a GPU; see ``largest_cluster``
    in ``signguard``.
    """
    m = len(features)
    chosen = torch.empty(m, dtype=torch.int8, device=features.device)
    padded = max(2, 1 << (m - 1).bit_length())
    gpu_kernels.launch(
        shift, (1,), features.double().contiguous(), chosen, slack, most_steps, m, M=padded
    )
    return chosen.view(torch.bool)
