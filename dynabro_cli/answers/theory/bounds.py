"""The paper's bounds on (1/T) sum_t E|grad f(x_t)|^2; numbers only, no torch.

"log T" is log2 T, because the proofs need 2^J <= T. The log within C is the natural logarithm, as
in the concentration inequality from which C comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def kappa_cwmed(workers: int, byzantine: int) -> float:
    """Return the proved kappa of the coordinate-wise median (Allouah et al., AISTATS 2023, Table
    1).
    """
    return 4 * (1 + byzantine / (workers - 2 * byzantine)) ** 2


def kappa_nnm_cwmed(workers: int, byzantine: int) -> float:
    """Return the proved kappa of the coordinate-wise median after nearest-neighbour mixing (Allouah
    et al., Lemma 5).
    """
    return 8 * byzantine / (workers - byzantine) * (kappa_cwmed(workers, byzantine) + 1)


KAPPAS: dict[str, Callable[[int, int], float]] = {
    "cwmed": kappa_cwmed,
    "nnm+cwmed": kappa_nnm_cwmed,
}


def gamma_mfm(workers: int, byzantine: int) -> float:
    """Return gamma~ = 32 delta^2 + 1/m of Theorem 5.2."""
    return 32 * (byzantine / workers) ** 2 + 1 / workers


def static_bound(T: float, gamma: float, sigma: float, L: float, gap: float) -> float:
    """Return the bound of ``thm:nonconvex-static``."""
    return (
        16 * math.sqrt(L * gap * sigma**2 * gamma * math.log2(T) / T)
        + 2 * (L * gap + 2 * sigma**2 * gamma) / T
    )


def dynamic_bound(
    T: float, gamma: float, CV: float, L: float, gap: float, dynamic: float = 0
) -> float:
    """Return the bound of ``thm:nonconvex`` for a number of dynamic rounds."""
    noise = 12 * CV * math.sqrt(L * gap * gamma * math.log2(T) / T)
    return (
        noise
        + (2 * L * gap + 9 * CV**2 * gamma) / T
        + 16 * CV**2 * gamma * dynamic * math.log2(T) / T
    )


def adaptive_bound(
    T: float, gamma: float, CV: float, zeta: float, workers: int, dynamic: float = 0
) -> float:
    """Return the bound of ``thm:nonconvex-adaptive`` with its constants (Appendix, Theorem 5.2);
    gamma = 32 delta^2 + 1/m.

    zeta = 2M/eta_0 + eta_0 L, M a bound of |f|. C~ = 2 sqrt(2) C, as in the places that use it; its
    definition once has 4 m^2 T.
    """
    log, CV = math.log2(T), 2 * math.sqrt(2) * CV
    first = (
        27 * math.sqrt(dynamic * log) / T
        + 8 * math.sqrt(gamma * log / T)
        + 6 * log / (workers * math.pow(T, 1.5))
    )
    second = 125 * dynamic * log / T + 6 * gamma / T + 15 * log**2 / (workers**2 * T**2)
    return 8 * zeta * CV * first + 4 * CV**2 * second + 1024 * zeta**2 * log / T
