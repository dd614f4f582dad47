"""Sorting networks over the rows of an [m, d] matrix, cut down to the order statistics that a rule needs.

Batcher's odd-even merge sort (AFIPS 1968) compares whole rows, so a column-wise sort becomes a fixed sequence of
``minimum`` and ``maximum`` over contiguous memory, several times faster than ``sort(0)`` and equal to it bit for bit.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from dynabro_cli.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

from dynabro_cli.vectors.means import column_blocks, mean_of_rows

COLUMNS = 1 << 15  # on a CPU, a block of columns that stays in cache with all its rows


@functools.cache
def comparators(m: int, first: int, stop: int) -> tuple[tuple[int, int], ...]:
    """Return the comparators (i, j), i < j, of a network whose outputs [first, stop) equal a sort of m inputs."""
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
    """Return the mean over rows [trim, m - trim) of the column-wise sorted messages: [m, d] -> [d]."""
    m = messages.shape[0]
    network = comparators(m, trim, m - trim)
    blocks = column_blocks(messages, COLUMNS)
    return torch.cat([mean_of_rows(_ordered(messages[:, block], network)[trim : m - trim]) for block in blocks])


def nearest_mean(messages: Tensor, trim: int, left_out: int) -> Tensor:
    """Return the mean of all but ``left_out`` values of each column, those nearest to its ``middle_mean``: [m, d] -> [d].

    The values nearest to a centre are next to each other in a sorted column. Of two values that are m - left_out apart in it,
    one is left out: the one further from the centre, or the larger one in a tie.
    """
    m = messages.shape[0]
    network, kept = comparators(m, 0, m), m - left_out
    parts = []
    for block in column_blocks(messages, COLUMNS):
        rows = _ordered(messages[:, block], network)
        centre = mean_of_rows(rows[trim : m - trim])
        lower_stays = [centre - rows[j] <= rows[j + kept] - centre for j in range(left_out)]
        nearest = {
            j % kept: rows[j] for j in range(left_out, m)
        }  # of two values that are ``kept`` apart, one stays: the first one if it may
        for j in reversed(range(left_out)):
            nearest[j % kept] = torch.where(lower_stays[j], rows[j], nearest[j % kept])
        parts.append(mean_of_rows(list(nearest.values())))
    return torch.cat(parts)


def _ordered(messages: Tensor, network: tuple[tuple[int, int], ...]) -> list[Tensor]:
    """Return the rows after the comparators of ``network``."""
    rows = list(messages.unbind(0))
    for i, j in network:
        rows[i], rows[j] = torch.minimum(rows[i], rows[j]), torch.maximum(rows[i], rows[j])
    return rows
