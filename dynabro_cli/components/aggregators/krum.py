"""Krum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    declared,
    proved,
    weighing,
)
from dynabro_cli.components.aggregators._selection import lowest, refuse_f
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.gram import squared_distances

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    f: int | None = parameter(
        None,
        minimum=0,
        auto=declared,
        help="Byzantine workers tolerated; auto: the declared number",
    )
    neighbours: str = parameter(
        "paper",
        choices=("paper", "m-f-1"),
        help="number of nearest others in the score: m-f-2 as in the paper, or m-f-1",
    )


@REGISTRY.register(
    "krum",
    Parameters,
    reference="Blanchard, El Mhamdi, Guerraoui & Stainer, NeurIPS 2017; kappa: Allouah et al., "
    "AISTATS 2023, Table 1",
)
def krum(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Krum: the message closest to its neighbours.

    A(g_1, ..., g_m) = g_{i*}, i* = argmin_i of the sum of |g_i - g_j|^2 over the m - f - 2 messages
    j != i that are nearest to i; the lowest index wins a tie. Sums that are equal in exact
    arithmetic, as of some different messages after nnm, may differ by rounding; then the smaller
    one wins.

    kappa = 6 (1 + f/(m - 2f)), if no more than f Byzantine workers are declared. Allouah et al.
    prove the constant for m - f neighbours, including the message itself: neighbours=m-f-1. The
    constant also holds for the default, which has one neighbour fewer: ``proved_kappa`` in
    ``dynabro_cli/components/aggregators/krum.py`` proves both. Raises SpecError unless 2f + 2 < m.
    """
    m = setting.workers
    f = setting.byzantine if parameters.f is None else parameters.f
    refuse_f("krum", f, m, 2, "2f + 2 < m")
    scored = m - f - (2 if parameters.neighbours == "paper" else 1)

    def weigh(gram: Tensor) -> Tensor:
        # the first is the message itself
        nearest = squared_distances(gram).sort(1).values[:, 1 : 1 + scored]
        return lowest(nearest.sum(1), 1).double()

    return weighing(weigh, proved(proved_kappa(m, f), f, setting))


def proved_kappa(m: int, f: int) -> float:
    """Return 6 (1 + f/(m - 2f)), a kappa of Krum with either number of neighbours, for 2f + 2 < m.

    Proof. S is any set of h = m - f messages, x their mean, V the mean of their |g_i - x|^2, and k
    the message chosen. q others are scored: h - 1, or h - 2 by default. C is k and its q nearest
    others. T is a set of n = q + 1 - f messages of C and S; it exists, because at most f of the q +
    1 messages in C are not in S. Put a = sum_{i in T} |g_i - x|^2/(h V).

    (1) For i in S, score(k) <= score(i) <= q/(h-1) sum_{j in S} |g_i - g_j|^2 = q/(h-1) (h |g_i -
    x|^2 + h V), because the q nearest of all others are no farther than the q nearest of the h - 1
    others in S.

    (2) By Minkowski's inequality over T, sqrt(n) |g_k - x| <= sqrt(score(k)) + sqrt(a h V).

    q = h - 1, n = h - f: the mean of (1) over S is score(k) <= 2 h V, and a <= 1. By (2) |g_k -
    x|^2 <= (1 + sqrt 2)^2 h V/n, and (1 + sqrt 2)^2 < 6, h/n = 1 + f/(m - 2f).

    q = h - 2, n = h - s with s = f + 1: put c = q/(h-1), p = h/s > 1, e = p - 1, b = 1/s. Then h/n
    = p/e, c <= 1 - b/p, and b <= e/2, because h >= s + 2. The mean of (1) over S outside of T is
    score(k) <= c h V (1 + p (1 - a)), and over T it is score(k) <= c h V (1 + a p/e). By (2) |g_k -
    x|^2 <= B V, B the largest value over a of (p/e) (sqrt a + sqrt(c r))^2, r the smaller one of 1
    + p (1 - a) and 1 + a p/e. To be shown: B <= 6 (1 + f/(m - 2f)) = 6 h/(h - f) = 6 p/(e + b).

    The second expression in r grows with a, the first one falls, and they are equal, 2, at a = e/p.
    So for a <= e/p the value is at most the value at a = e/p. For a >= e/p it is (sqrt a + sqrt(c
    (1 + p - p a)))^2 p/e, which has one maximum, (1/p + c)(1 + p) p/e (Cauchy-Schwarz), at a = (1 +
    p)/(p (1 + c p)), and falls beyond it.

    Case c p e <= 2: B <= (1 + c p)(1 + p)/e <= (2 + e)(2 + e - b)/e by c p <= p - b. That is at
    most 6 p/(e + b) if (2 + e)(2 + e - b)(e + b) <= 6 e (1 + e). The left side grows with b <= e/2,
    to e (2 + e)(3 + 3e/4). For e <= 2 this is at most the right side, and c p e <= 2 with c >= 1/2
    implies e < 2.

    Case c p e >= 2: the maximum is at a <= e/p, so B = (1 + sqrt(2 c p/e))^2 <= (1 + t)(1 + 2 (p -
    b)/(t e)) for any t > 0. For e <= 2 take t = 2. It remains to show (1 + 2e - b)(e + b) <= 2 e (1
    + e), or b (1 + e - b) <= e. The left side grows with b <= e/2, to (e/2)(1 + e/2) <= e. For e >
    2 take t = sqrt 2. It remains to show (1 + sqrt 2)(e sqrt 2 + 2 + 2e - 2b)(e + b) <= 6 sqrt(2) e
    (1 + e). The left side grows with b <= 1, to (1 + sqrt 2)(2 + sqrt 2) e (e + 1), and (1 + sqrt
    2)(2 + sqrt 2) < 8.25 < 6 sqrt 2.
    """
    return 6 * (1 + f / (m - 2 * f))
