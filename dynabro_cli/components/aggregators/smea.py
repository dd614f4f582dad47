"""Smallest maximum eigenvalue averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    declared,
    proved,
    tolerated,
    weighing,
)
from dynabro_cli.components.aggregators._subsets import check_number, subsets
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.operators import opaque

if TYPE_CHECKING:
    from torch import Tensor

MOST_SUBSETS = 100_000
"""Largest number of subsets; an aggregate then takes about two seconds at most."""

AT_A_TIME = 4096
TIE = 1e-9
"""Eigenvalues that differ by less than this share count as equal, because the products have this
precision.
"""


@dataclass(frozen=True)
class Parameters:
    f: int | None = parameter(
        None,
        minimum=0,
        auto=declared,
        help="messages left out; auto: the declared number of Byzantine",
    )


@REGISTRY.register(
    "smea",
    Parameters,
    reference="Allouah, Guerraoui, Gupta, Pinot & Stephan, ICML 2023 (the "
    "privacy-robustness-utility trilemma)",
)
def smea(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Smallest maximum eigenvalue averaging (SMEA): the mean of the m - f messages that spread
    least in any direction.

    A(g_1, ..., g_m) = mean_{S*}, S* = argmin over S with |S| = m - f of the largest eigenvalue of
    the covariance (1/|S|) sum_{i in S} (g_i - mean_S)(g_i - mean_S)^T. All subsets are compared, by
    the eigenvalues of their centred Gram matrices; the lexicographically first wins a tie.

    kappa = 4f/(m - f) (1 + f/(m - 2f))^2, if no more than f Byzantine workers are declared. (Two
    sets of m - f messages share m
    - 2f of them. The mean of the shared messages is at most sqrt(lambda f/(m - 2f)) from the mean
    of either set, which even proves 4f/(m - 2f).) Costs O(m^2 d + C(m, f) m^3). Raises SpecError if
    2f >= m, or if there are more than 100,000 subsets.
    """
    m = setting.workers
    f = tolerated("smea", parameters.f, setting)
    check_number("smea", m, f, MOST_SUBSETS)

    def weigh(gram: Tensor) -> Tensor:
        return torch.zeros_like(gram[0]).index_fill(0, flattest(gram, f), 1)

    return weighing(weigh, proved(4 * f / (m - f) * (1 + f / (m - 2 * f)) ** 2, f, setting))


@opaque(
    "flattest(Tensor gram, int f) -> Tensor",
    lambda gram, f: gram.new_empty(len(gram) - f, dtype=torch.int64),
)
def flattest(gram: Tensor, f: int) -> Tensor:
    """Return the indices [m - f] of the first set whose largest eigenvalue is smallest, from the
    Gram matrix [m, m].
    """
    m = len(gram)
    members = subsets(m, m - f, gram.device)
    parts = [members[start : start + AT_A_TIME] for start in range(0, len(members), AT_A_TIME)]
    largest = torch.cat(
        [largest_eigenvalues(gram[part[:, :, None], part[:, None, :]]) for part in parts]
    )
    first = (largest <= largest.amin() * (1 + TIE)).int().argmax().view(1)
    return members.index_select(0, first)[0]


def largest_eigenvalues(grams: Tensor) -> Tensor:
    """Return the largest eigenvalue of the scatter around the mean of k vectors, from their Gram
    matrix [n, k, k]: [n].
    """
    centred = (
        grams
        - grams.mean(1, keepdim=True)
        - grams.mean(2, keepdim=True)
        + grams.mean((1, 2), keepdim=True)
    )
    eigenvalues: Tensor = torch.linalg.eigvalsh(centred)
    return eigenvalues[:, -1].clamp_min(0)
