"""Costs of MLMC rounds, and the number of rounds in a budget; numbers only, no torch."""

from __future__ import annotations

import math


def expected_cost(jmax: int) -> float:
    """Return the expected number of mini-batches of a round: sum_{j <= jmax} 2^-j 2^j + 2^-jmax."""
    return jmax + 2.0**-jmax


def planned(budget: int, jmax: int | None) -> tuple[int, int]:
    """Return the expected number of rounds T in ``budget``, and the largest level: ``jmax``, or
    if None the largest j with 2^j <= T(j), the expected number of rounds at ``jmax`` = j.
    """
    if jmax is not None:
        return max(1, round(budget / expected_cost(jmax))), jmax
    level = 0
    while 2 ** (level + 1) <= budget / expected_cost(level + 1):
        level += 1
    return max(1, round(budget / expected_cost(level))), level


def universal_coefficient(workers: int, rounds: float) -> float:
    """Return C = sqrt(8 log(16 m^2 T)) of Algorithm 2."""
    return math.sqrt(8 * math.log(16 * workers**2 * rounds))
