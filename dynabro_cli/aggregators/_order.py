"""Sorting networks over the rows of an [m, d] matrix, cut down to the order statistics that a rule needs.

Batcher's odd-even merge sort (AFIPS 1968) compares whole rows, so a column-wise sort becomes a fixed sequence of
``minimum`` and ``maximum`` over contiguous memory, several times faster than ``sort(0)`` and equal to it bit for bit.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

COLUMNS = 1 << 15  # on a CPU, a block of columns that stays in cache with all its rows


@functools.cache
def comparators(m: int, first: int, stop: int) -> tuple[tuple[int, int], ...]:
    """The comparators (i, j), i < j, of a network whose outputs [first, stop) are those of a sort of m inputs."""
    pairs = []
    p = 1
    while p < m:
        k = p
        while k >= 1:
            for j in range(k % p, m - k, 2 * k):
                for i in range(min(k, m - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        pairs.append((i + j, i + j + k))
            k //= 2
        p *= 2
    needed = set(range(first, stop))
    kept = []
    for pair in reversed(pairs):
        if needed.intersection(pair):
            kept.append(pair)
            needed.update(pair)
    return tuple(reversed(kept))


def middle_mean(messages: Tensor, trim: int) -> Tensor:
    """The mean over rows [trim, m - trim) of the column-wise sorted messages: [m, d] -> [d]."""
    m, d = messages.shape
    network = comparators(m, trim, m - trim)
    out = torch.empty_like(messages[0])
    in_blocks = messages.device.type == "cpu" and not torch.compiler.is_compiling()
    columns = COLUMNS if in_blocks else d
    for start in range(0, d, columns):
        rows = list(messages[:, start : start + columns].unbind(0))
        for i, j in network:
            rows[i], rows[j] = torch.minimum(rows[i], rows[j]), torch.maximum(rows[i], rows[j])
        total = rows[trim]
        for row in rows[trim + 1 : m - trim]:
            total = total + row
        torch.div(total, m - 2 * trim, out=out[start : start + columns])
    return out
