"""Weighted means of messages: exact if the messages are equal, and finite if they are.

Single-precision messages are added up in double precision. For double-precision messages, the
differences from one message are added up, so that equal messages are their own mean. The
differences are scaled down by a power of two, because their sum may overflow.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine import gpu_kernels, native
from dynabro_cli.core.vectors.finite import host_may_look, number
from dynabro_cli.core.vectors.operators import INLINED, opaque

if TYPE_CHECKING:
    from torch import Tensor

KERNEL = native.Kernel(Path(__file__).with_name("means.cpp"), {})

ENTRIES = 1 << 18
"""Entries of a block of columns that stays in a CPU's cache."""

UNROLLED = 64
"""Largest number of rows that compiled code names one by one; the time to compile grows with the
number.
"""


def column_blocks(messages: Tensor, columns: int | None = None) -> list[slice]:
    """Return the columns of messages [m, d] as slices, on a CPU in blocks of ``columns``, by
    default in cache-sized blocks.
    """
    m, d = messages.shape
    size = columns or max(1, ENTRIES // m)
    return (
        [slice(start, start + size) for start in range(0, d, size)]
        if host_may_look(messages)
        else [slice(d)]
    )


def weighted(messages: Tensor, weights: Tensor, total: int | Tensor | None = None) -> Tensor:
    """Return sum_i w_i g_i / total: [m, d], [m] -> [d].

    Args:
        messages: The messages.
        weights: 0 <= w_i <= 1.
        total: A number of at least sum_i w_i, by default this sum. The result is 0 if the total is
            0.
    """
    if messages.dtype == torch.float32 and gpu_kernels.triton_works("mean", messages, weights):
        from dynabro_cli.core.vectors._mean_kernel import mean_of as by_kernel

        return gpu_kernels.checked(
            "mean",
            (messages.shape, weights.dtype, total is None),
            lambda: by_kernel(messages, weights, None if total is None else number(total, weights)),
            lambda: weighted(messages, weights, total),
            bound=lambda: 2.0**-22 * weighted(messages.abs(), weights, total),
        )
    weights = weights.double()
    over = weights.sum() if total is None else number(total, weights)
    if host_may_look(messages):
        if total is None and weights.tolist().count(0.0) == len(weights) - 1:
            return messages.index_select(0, weights.argmax().view(1))[0]
        fast = _by_kernel(messages, weights, over)
        if fast is not None:
            return fast
    some = torch.where(over == 0, 1, over)
    parts = []
    for block in column_blocks(messages):
        rows = messages[:, block]
        if messages.dtype != torch.float64:
            parts.append((_combined(weights, rows.double()) / some).to(messages.dtype))
        else:
            base, shrink = rows.index_select(0, weights.argmax().view(1))[0], _shrinking(len(rows))
            pull = _combined(weights, torch.add(base * -shrink, rows, alpha=shrink))
            parts.append(_moved(base * (weights.sum() / some), pull / (2 * shrink * some)))
    return held(torch.cat(parts) if len(parts) > 1 else parts[0])


def unweighted(messages: Tensor) -> Tensor:
    """Return the mean of the messages, like ``weighted`` with equal weights: [m, d] -> [d]."""
    library = _library_for(messages) if host_may_look(messages) and len(messages) > 1 else None
    if library is None or not _adds_as_blas(library):
        return weighted(messages, messages.new_ones(len(messages)))
    return _mean(library, messages, _ones(len(messages)), float(len(messages)))


@functools.cache
def _ones(m: int) -> ctypes.Array[ctypes.c_double]:
    return (ctypes.c_double * m)(*[1.0] * m)


def _by_kernel(messages: Tensor, weights: Tensor, total: Tensor) -> Tensor | None:
    """Compute ``weighted`` with a kernel that makes no copy in double precision; the result is
    equal bit for bit. Return None if the kernel is not available, or does not support these
    messages.
    """
    library = _library_for(messages, weights)
    if library is None or not _adds_as_blas(library):
        return None
    return _mean(library, messages, weights.contiguous(), float(total) or 1.0)


def _library_for(messages: Tensor, *weights: Tensor) -> ctypes.CDLL | None:
    """Return the kernel if it is available and supports these messages, which the host may look
    at.
    """
    tensors = (messages, *weights)
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    # BLAS adds up the columns of a transposed matrix in another order
    if messages.dtype != torch.float32 or messages.stride(1) != 1 or differentiated:
        return None
    return KERNEL.at_hand()


def _mean(
    library: ctypes.CDLL,
    messages: Tensor,
    weights: Tensor | ctypes.Array[ctypes.c_double],
    total: float,
) -> Tensor:
    (m, d), out = messages.shape, messages.new_empty(messages.shape[1])
    native.Library(library).run("mean", messages, m, d, messages.stride(0), weights, total, out)
    return out


@functools.cache
def _adds_as_blas(library: ctypes.CDLL) -> bool:
    """Return True if the kernel rounds as this machine's BLAS, so that stored runs can be repeated
    bit for bit: large numbers cancel, and only roundings remain.
    """
    rows = torch.arange(1419.0).sin().view(43, 33)
    rows[3] *= 1e15
    rows[41] = -rows[3]
    weights = torch.full((43,), 0.7, dtype=torch.float64)
    return torch.equal(_mean(library, rows, weights, 1.0), (weights @ rows.double()).float())


def held(vector: Tensor) -> Tensor:
    """Return the vector unchanged; a function compiled for a CPU then computes it once, not again
    for each row that uses it.
    """
    return (
        _copy(vector) if torch.compiler.is_compiling() and vector.device.type == "cpu" else vector
    )


@opaque("copy(Tensor vector) -> Tensor", lambda vector: vector.new_empty(vector.shape))
def _copy(vector: Tensor) -> Tensor:
    return vector.clone()


def mean_of(messages: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of the messages [m, d] that the bool mask [m] chooses; 0 if it chooses
    none.
    """
    return weighted(messages, chosen)


def mean_of_rows(rows: list[Tensor]) -> Tensor:
    """Return the mean of the rows, [d] each; one row is its own mean."""
    if len(rows) == 1:
        return rows[0]
    if rows[0].dtype != torch.float64:
        total = rows[0].double()
        for row in rows[1:]:
            total = total + row.double()
        return (total / len(rows)).to(rows[0].dtype)
    if len(rows) == 2:
        return rows[0] / 2 + rows[1] / 2  # rounded once, so that both are equally far from it
    middle, shrink = len(rows) // 2, _shrinking(len(rows))
    base = rows[middle]
    pull = torch.zeros_like(base)
    for place, row in enumerate(rows):
        pull = pull if place == middle else pull + torch.add(base * -shrink, row, alpha=shrink)
    return _moved(base, pull / (2 * shrink * len(rows)))


@opaque(
    "means_of_groups(Tensor messages, int s) -> Tensor",
    lambda messages, s: messages.new_empty(-(-len(messages) // s), messages.shape[1]),
    inlined=INLINED,
)
def means_of_groups(messages: Tensor, s: int) -> Tensor:
    """Return the means of s messages each, in their order; the last mean has the rest: [m, d] ->
    [ceil(m/s), d].
    """
    (m, d), starts = messages.shape, range(0, len(messages), s)
    library = _library_for(messages) if host_may_look(messages) else None
    if library is None:
        return torch.stack([mean_of_rows(list(messages[start : start + s])) for start in starts])
    means = messages.new_empty(len(starts), d)
    native.Library(library).run("means_of_groups", messages, m, d, messages.stride(0), s, means)
    return means


@opaque(
    "mixed(Tensor messages, Tensor weights, Tensor centre) -> Tensor",
    lambda messages, weights, centre: messages.new_empty(len(weights), messages.shape[1]),
)
def mixed(messages: Tensor, weights: Tensor, centre: Tensor) -> Tensor:
    """Return the weighted mean of the messages for each row of weights: [m, d], [n, m] -> [n, d].

    Args:
        messages: The messages.
        weights: 0 <= w_ij <= 1, no row all 0.
        centre: The index, a tensor [1], of a message that is near to most messages; differences are
            taken from it.
    """
    weights, shrink = weights.to(messages.dtype), _shrinking(len(messages))
    totals = 2 * shrink * weights.sum(1, keepdim=True)
    means = messages.new_empty(len(weights), messages.shape[1])
    for block in column_blocks(messages):
        rows = messages[:, block]
        base = rows.index_select(0, centre)
        pulls = torch.add(base * -shrink, rows, alpha=shrink)
        # like `_moved`, in few passes over the block
        means[:, block] = torch.addcdiv(base / 2, weights @ pulls, totals).mul_(2)
    return means


def _combined(weights: Tensor, rows: Tensor) -> Tensor:
    """Return the rows' weighted sum, [b]; a compiled function does not have to write out the rows
    for this sum.

    A few rows are added one after the other: compiled sums over the rows of a matrix go down its
    columns, with jumps in memory.
    """
    if not torch.compiler.is_compiling():
        return weights @ rows
    if len(rows) > UNROLLED:
        return (weights[:, None] * rows).sum(0)
    total = weights[0] * rows[0]
    for weight, row in zip(weights[1:].unbind(0), rows[1:].unbind(0), strict=True):
        total = total + weight * row
    return total


def _shrinking(count: int) -> float:
    """Return a power of two under 1/(2 count): scaled by it, a sum of ``count`` differences is no
    larger than the numbers.
    """
    return 2.0 ** -(count.bit_length() + 1)


def _moved(base: Tensor, half: Tensor) -> Tensor:
    """Return base + 2 half; 2 half alone may overflow."""
    return 2 * (base / 2 + half)
