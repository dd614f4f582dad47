# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment, var-annotated"
"""Order statistics as one kernel of a GPU: a thread sorts the values of its columns in
registers.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine import gpu_kernels

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = 256
"""Columns of a block of threads."""


@triton.jit
def mean_of(rows, first: tl.constexpr, stop: tl.constexpr):
    """Return the mean of rows [first, stop), added up in double precision in their order."""
    mean = rows[first]
    if stop - first > 1:
        total = mean.to(tl.float64)
        for i in tl.static_range(first + 1, stop):
            total += rows[i].to(tl.float64)
        mean = (total / (stop - first)).to(tl.float32)
    return mean


@triton.jit
def order(
    messages,
    out,
    stride: tl.int64,
    d,
    M: tl.constexpr,
    TRIM: tl.constexpr,
    LEFT_OUT: tl.constexpr,
    PAIRS: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write ``middle_mean`` [d] of the messages [M, d], or ``nearest_mean`` if LEFT_OUT >= 0;
    ``_order`` does the same.

    PAIRS has the rows of COUNT comparators. Minimum and maximum are NaN if one of the values is, as
    torch's are.
    """
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = k < d
    rows = ()
    for i in tl.static_range(M):
        rows = rows + (tl.load(messages + i * stride + k, mask=inside, other=0.0),)  # noqa: RUF005 (Triton has no stars)
    for c in tl.static_range(0, 2 * COUNT, 2):
        low = tl.minimum(rows[PAIRS[c]], rows[PAIRS[c + 1]], propagate_nan=tl.PropagateNan.ALL)
        high = tl.maximum(rows[PAIRS[c]], rows[PAIRS[c + 1]], propagate_nan=tl.PropagateNan.ALL)
        rows = (
            rows[: PAIRS[c]]  # noqa: RUF005
            + (low,)
            + rows[PAIRS[c] + 1 : PAIRS[c + 1]]
            + (high,)
            + rows[PAIRS[c + 1] + 1 :]
        )
    result = mean_of(rows, TRIM, M - TRIM)
    if LEFT_OUT >= 0:
        kept = ()
        for j in tl.static_range(LEFT_OUT, M):
            value = rows[j]
            if j >= M - LEFT_OUT:
                lower = rows[j - M + LEFT_OUT]
                value = tl.where(result - lower <= value - result, lower, value)
            kept = kept + (value,)  # noqa: RUF005
        result = mean_of(kept, 0, M - LEFT_OUT)
    tl.store(out + k, result, mask=inside)


def order_statistics(
    messages: "Tensor", pairs: tuple[tuple[int, int], ...], trim: int, excluded: int
) -> "Tensor":
    """Return ``middle_mean``, or ``nearest_mean`` if ``excluded`` >= 0, of messages [m, d] in
    single precision on a GPU.
    """
    rows = messages if messages.stride(1) == 1 else messages.contiguous()
    m, d = rows.shape
    out = torch.empty(d, dtype=rows.dtype, device=rows.device)
    constants = {
        "M": m,
        "TRIM": trim,
        "LEFT_OUT": excluded,
        "PAIRS": sum(pairs, ()),
        "COUNT": len(pairs),
        "BLOCK": COLUMNS,
    }
    gpu_kernels.launch(order, (triton.cdiv(d, COLUMNS),), rows, out, rows.stride(0), d, **constants)
    return out
