# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Weighted mean of messages as one kernel of a GPU, which makes no copy of them in double
precision.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine import gpu_kernels

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = 512
"""Columns of a block of threads."""


@triton.jit
def mean(messages, weights, total, out, stride: tl.int64, m, d, BLOCK: tl.constexpr):
    """Write ``weighted`` of ``means``: sums are in double precision, in the order of the rows;
    ``total`` may be None.
    """
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = k < d
    sums = tl.zeros([BLOCK], tl.float64)
    over = tl.sum(tl.zeros([1], tl.float64), 0)
    for i in range(m):
        weight = tl.load(weights + i).to(tl.float64)
        sums += weight * tl.load(messages + i * stride + k, mask=inside, other=0.0).to(tl.float64)
        over += weight
    if total is not None:
        over = tl.load(total).to(tl.float64)
    tl.store(out + k, (sums / tl.where(over == 0, 1.0, over)).to(tl.float32), mask=inside)


def mean_of(messages: "Tensor", weights: "Tensor", total: "Tensor | None") -> "Tensor":
    """Return ``weighted(messages, weights, total)`` of messages in single precision on a GPU."""
    rows = messages if messages.stride(1) == 1 else messages.contiguous()
    m, d = rows.shape
    out, weights = torch.empty(d, dtype=rows.dtype, device=rows.device), weights.contiguous()
    gpu_kernels.launch(
        mean,
        (triton.cdiv(d, COLUMNS),),
        rows,
        weights,
        total,
        out,
        rows.stride(0),
        m,
        d,
        BLOCK=COLUMNS,
    )
    return out
