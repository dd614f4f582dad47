"""The subsets of m - f of m workers, for rules that compare all of them."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import np, torch

if TYPE_CHECKING:
    from torch import Tensor

MOST_PRINTED = 10**15
"""Largest number of subsets that is printed digit by digit."""


def check_number(rule: str, m: int, f: int, most: int) -> None:
    """Raise SpecError if more than ``most`` subsets would have to be compared."""
    if _within(m, f, most):
        return
    count = str(math.comb(m, f)) if _within(m, f, MOST_PRINTED) else f"more than {MOST_PRINTED}"
    fewer = max(itertools.takewhile(lambda g: _within(m, g, most), range(f)))
    smaller = max(
        itertools.takewhile(lambda n: _within(n, f, most), range(2 * f + 1, m)), default=None
    )
    raise SpecError(
        f"aggregator {rule!r}: {m} workers with f={f} have {count} subsets of {m - f}, and "
        "each aggregate "
        f"compares all of them, which takes reasonable time up to {most}. Try: '{rule}:f={fewer}'"
        + (f", or {smaller} workers" if smaller else "")
    )


def _within(m: int, f: int, most: int) -> bool:
    """Return True if m workers have at most ``most`` subsets of m - f; the exact number may be too
    large to compute.
    """
    count = 1
    for k in range(1, min(f, m - f) + 1):
        count = count * (m - k + 1) // k
        if count > most:
            return False
    return True


# never dropped: a CUDA graph reads the table where it was at the capture
@functools.cache
def subsets(m: int, size: int, device: torch.device) -> Tensor:
    """Return the indices of all subsets of ``size`` of m workers, in lexicographic order, [C(m,
    size), size].
    """
    indices = itertools.chain.from_iterable(itertools.combinations(range(m), size))
    table = torch.from_numpy(np.fromiter(indices, np.int64, math.comb(m, size) * size))
    return table.view(-1, size).to(device)
