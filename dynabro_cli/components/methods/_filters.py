"""Common parts of methods that filter workers by their history: medians of vectors and numbers, and
a mean of the rest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.vectors.finite import finite_rows
from dynabro_cli.core.vectors.gram import distances

if TYPE_CHECKING:
    from torch import Tensor

EMPTY = ("restart", "wait")
EMPTY_HELP = "if no worker is left: restart with all, or wait (g_t = 0) for the end of the window"


def clean_rows(messages: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mask [m] of finite messages, and the messages [m, d] with 0 for the others."""
    finite = finite_rows(messages)
    return finite, torch.where(finite[:, None], messages, 0)


def near_median(vectors: Tensor, threshold: float, voters: Tensor) -> Tensor:
    """Return the mask [m] of the vectors [m, d] within 2 ``threshold`` of the median vector.

    The median vector is the first vector of a voter with more than m/2 voters within ``threshold``,
    including itself. Without such a voter, no vector counts as near.
    """
    apart = distances(vectors)
    close = (apart <= threshold) & voters
    central = voters & (close.sum(1) > len(voters) / 2)
    median = torch.argmax(central.int()).view(1)  # the first, or 0 if no vector is central
    return (apart.index_select(0, median)[0] <= 2 * threshold) & central.any()


def near_middle(numbers: Tensor, threshold: Tensor, voters: Tensor) -> Tensor:
    """Return the mask [m] of the numbers within ``threshold`` of the voters' median (the midpoint
    if their count is even).
    """
    ordered = torch.where(voters, numbers, math.inf).sort().values
    count = voters.sum()
    places = torch.stack([(count - 1).clamp_min(0) // 2, count // 2]).clamp_max(len(numbers) - 1)
    return (numbers - ordered.index_select(0, places).mean()).abs() <= threshold


def concentration(workers: int, rounds: int, p: float) -> float:
    """Return log(16 m T/p), the margin for squared sums of noise that holds in all rounds except
    with probability p.
    """
    return math.log(16 * workers * rounds / p)
