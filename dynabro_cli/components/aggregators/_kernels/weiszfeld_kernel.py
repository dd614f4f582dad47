# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Weiszfeld's steps as one kernel of a GPU, so that the host neither waits for the Gram matrix nor
sends weights back.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine import gpu_kernels

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def steps(
    gram,
    weights,
    nu: tl.float64,
    tolerance: tl.float64,
    smallest: tl.float64,
    most_steps,
    m,
    M: tl.constexpr,
):
    """Write the weights [m] of the geometric median; ``weiszfeld`` in ``gm`` does the same in
    NumPy, line by line.

    ``smallest`` is the least distance that counts; ``M`` is the power of two that the m workers are
    padded to. The numbers need their types: without them, Triton would use single precision, in
    which ``smallest`` is 0.
    """
    i = tl.arange(0, M)
    inside = i < m
    products = tl.load(
        gram + i[:, None] * m + i[None, :], mask=inside[:, None] & inside[None, :], other=0.0
    )
    squares = tl.maximum(tl.sum(tl.where(i[:, None] == i[None, :], products, 0.0), 1), 0.0)
    distances = tl.sqrt(squares)
    ordered = tl.sort(tl.where(inside, distances, float("inf")))
    median = tl.sum(tl.where(i == (m - 1) // 2, ordered, 0.0), 0)
    least = tl.maximum(nu * median, smallest)
    chosen = tl.zeros_like(squares)
    inner = tl.zeros_like(squares)
    step = 0
    moves = True
    while moves & (step < most_steps):
        smoothed = tl.maximum(distances, least)
        moved = tl.where(inside, 1 / smoothed, 0.0)
        moved = moved / tl.sum(moved, 0)
        products_with_moved = tl.sum(products * moved[None, :], 1)
        square = tl.sum((moved - chosen) * (products_with_moved - inner), 0)
        chosen = moved
        inner = products_with_moved
        nearest = tl.min(tl.where(inside, smoothed, float("inf")), 0)
        moves = tl.sqrt(tl.maximum(square, 0.0)) > tolerance * nearest
        distances = tl.sqrt(tl.maximum(squares - 2 * inner + tl.sum(chosen * inner, 0), 0.0))
        step += 1
    tl.store(weights + i, chosen, mask=inside)


def weights_of(gram: "Tensor", nu: float, tolerance: float, most_steps: int) -> "Tensor":
    """Return the weights [m] of the geometric median from the Gram matrix [m, m] on a GPU; see
    ``weiszfeld`` in ``gm``.
    """
    m = len(gram)
    weights = torch.empty(m, dtype=torch.float64, device=gram.device)
    smallest = torch.finfo(torch.float64).tiny * m
    padded = max(2, 1 << (m - 1).bit_length())
    gpu_kernels.launch(
        steps,
        (1,),
        gram.double().contiguous(),
        weights,
        nu,
        tolerance,
        smallest,
        most_steps,
        m,
        M=padded,
    )
    return weights.to(gram.dtype)
