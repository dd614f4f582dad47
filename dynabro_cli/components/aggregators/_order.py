"""Sorting networks over the rows of an [m, d] matrix, reduced to the order statistics that a rule
needs.

Batcher's odd-even merge sort (AFIPS 1968) compares whole rows, so a column-wise sort becomes a
fixed sequence of ``minimum`` and ``maximum`` over contiguous memory, several times faster than
``sort(0)`` and equal to it bit for bit. A kernel does the same in one call, with equal results:
``_order.cpp`` on a CPU, and ``_order_kernel.py`` on a GPU.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine import gpu_kernels, native
from dynabro_cli.core.vectors.finite import host_may_look
from dynabro_cli.core.vectors.means import column_blocks, mean_of_rows
from dynabro_cli.core.vectors.operators import INLINED, opaque

if TYPE_CHECKING:
    from torch import Tensor

KERNEL = native.Kernel(Path(__file__).with_name("_kernels") / "order.cpp", {})

KERNEL_ROWS = 32
"""Most messages for the kernel of a GPU: for 64, Triton compiles for 15 to 33 s."""
COLUMNS = 1 << 15  # on a CPU, a block of columns that stays in cache with all its rows


@functools.cache
def comparators(m: int, first: int, stop: int) -> tuple[tuple[int, int], ...]:
    """Return the comparators (i, j), i < j, of a network that sorts m inputs in its outputs [first,
    stop).
    """
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


@opaque(
    "middle_mean(Tensor messages, int trim) -> Tensor",
    lambda messages, trim: torch.empty_like(messages[0]),
    inlined=INLINED,
)
def middle_mean(messages: Tensor, trim: int) -> Tensor:
    """Return the mean over rows [trim, m - trim) of the column-wise sorted messages: [m, d] ->
    [d].
    """
    m = messages.shape[0]
    fast = _by_kernel(messages, trim, trim, -1)
    if fast is not None:
        return fast
    network = comparators(m, trim, m - trim)
    blocks = column_blocks(messages, COLUMNS)
    return torch.cat(
        [mean_of_rows(_ordered(messages[:, block], network)[trim : m - trim]) for block in blocks]
    )


@opaque(
    "nearest_mean(Tensor messages, int trim, int excluded) -> Tensor",
    lambda messages, trim, excluded: torch.empty_like(messages[0]),
    inlined=INLINED,
)
def nearest_mean(messages: Tensor, trim: int, excluded: int) -> Tensor:
    """Return the mean of the m - left_out values of each column that are nearest to its
    ``middle_mean``: [m, d] -> [d].

    The values nearest to a centre are next to each other in a sorted column. Of two values that are
    m - left_out places apart, the one further from the centre is left out; in a tie, the larger
    one.
    """
    m = messages.shape[0]
    fast = _by_kernel(messages, 0, trim, excluded)
    if fast is not None:
        return fast
    network, kept = comparators(m, 0, m), m - excluded
    parts = []
    for block in column_blocks(messages, COLUMNS):
        rows = _ordered(messages[:, block], network)
        centre = mean_of_rows(rows[trim : m - trim])
        lower_stays = [centre - rows[j] <= rows[j + kept] - centre for j in range(excluded)]
        nearest = {
            j % kept: rows[j] for j in range(excluded, m)
        }  # of two values ``kept`` places apart one stays: the lower one where ``lower_stays``
        for j in reversed(range(excluded)):
            nearest[j % kept] = torch.where(lower_stays[j], rows[j], nearest[j % kept])
        parts.append(mean_of_rows(list(nearest.values())))
    return torch.cat(parts)


def _ordered(messages: Tensor, network: tuple[tuple[int, int], ...]) -> list[Tensor]:
    """Return the rows of the messages after all comparators of ``network``."""
    rows = list(messages.unbind(0))
    for i, j in network:
        rows[i], rows[j] = torch.minimum(rows[i], rows[j]), torch.maximum(rows[i], rows[j])
    return rows


def _by_kernel(messages: Tensor, first: int, trim: int, excluded: int) -> Tensor | None:
    """Compute ``middle_mean``, or ``nearest_mean`` if ``excluded`` >= 0, with a kernel; the result
    is equal bit for bit.

    Return None if the kernel is not available, or does not support these messages. The kernel needs
    the sorted rows [first, m - first).
    """
    m = messages.shape[0]
    if (
        m <= KERNEL_ROWS
        and messages.dtype == torch.float32
        and gpu_kernels.triton_works("order", messages)
    ):
        from dynabro_cli.components.aggregators._kernels.order_kernel import order_statistics

        pairs, middle = comparators(m, first, m - first), excluded < 0
        return gpu_kernels.checked(
            "order",
            (messages.shape, trim, excluded),
            lambda: order_statistics(messages, pairs, trim, excluded),
            lambda: (
                middle_mean(messages, trim) if middle else nearest_mean(messages, trim, excluded)
            ),
        )
    if not host_may_look(messages) or (messages.requires_grad and torch.is_grad_enabled()):
        return None
    loaded = KERNEL.at_hand()
    name = {torch.float32: "of_float", torch.float64: "of_double"}.get(messages.dtype)
    if loaded is None or name is None:
        return None
    rows, library = (
        messages if messages.stride(1) == 1 else messages.contiguous(),
        native.Library(loaded),
    )
    d, (count, network) = rows.shape[1], _network(m, first)
    scratch = torch.empty(library.number("scratch", library.threads, m), dtype=torch.uint8)
    out = rows.new_empty(d)
    library.run(name, scratch, rows, m, d, rows.stride(0), out, network, count, trim, excluded)
    return out


@functools.cache
def _network(m: int, first: int) -> tuple[int, Any]:
    """Return the number of comparators for the outputs [first, m - first), and an array of their
    rows for the kernel.
    """
    rows = [row for pair in comparators(m, first, m - first) for row in pair]
    return len(rows) // 2, (ctypes.c_int * len(rows))(*rows)
