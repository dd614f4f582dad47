"""The subsets of m - f of m workers, for rules that look at each of them."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import torch
from torch import Tensor

from dynabro_cli.errors import SpecError


def check_number(rule: str, m: int, f: int, most: int) -> None:
    """Raise SpecError where more than ``most`` subsets would have to be compared, which would not end in sensible time."""
    count = math.comb(m, f)
    if count > most:
        fewer = max(g for g in range(f) if math.comb(m, g) <= most)
        smaller = [n for n in range(2 * f + 1, m) if math.comb(n, f) <= most]
        raise SpecError(
            f"aggregator {rule!r}: {m} workers with f={f} have {count} subsets of {m - f}, and each aggregate "
            f"compares them all: that ends in sensible time up to {most}; type '{rule}:f={fewer}'"
            + (f", or --workers {smaller[-1]}" if smaller else "")
        )


@functools.lru_cache(maxsize=4)
def subsets(m: int, size: int, device: torch.device) -> Tensor:
    """The indices of all subsets of ``size`` of m workers, in lexicographic order, [C(m, size), size]."""
    indices = itertools.chain.from_iterable(itertools.combinations(range(m), size))
    table = torch.from_numpy(np.fromiter(indices, np.int64, math.comb(m, size) * size))
    return table.view(-1, size).to(device)
