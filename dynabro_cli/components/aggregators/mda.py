"""Minimum diameter averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    declared,
    tolerated,
    weighing,
)
from dynabro_cli.components.aggregators._subsets import check_number, subsets
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.gram import squared_distances
from dynabro_cli.core.vectors.operators import opaque

if TYPE_CHECKING:
    from torch import Tensor

MOST_SUBSETS = 500_000
"""Largest number of subsets; an aggregate then takes about a second at most."""


@dataclass(frozen=True)
class Parameters:
    f: int | None = parameter(
        None,
        minimum=0,
        auto=declared,
        help="messages left out; auto: the declared number of Byzantine",
    )


@REGISTRY.register(
    "mda",
    Parameters,
    reference="El Mhamdi, Guerraoui, Guirguis, Hoang & Rouault, PODC 2020; Rousseeuw, 1985 "
    "(there: minimum volume)",
)
def mda(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Minimum diameter averaging (MDA): the mean of the m - f messages that lie closest together.

    A(g_1, ..., g_m) = mean of the g_i with i in S*, S* = argmin over S with |S| = m - f of max_{i,
    j in S} |g_i - g_j|. All subsets are compared; the lexicographically first wins a tie. Ties are
    frequent, because one pair decides a diameter.

    No kappa: the proved result bounds the error by a diameter (resilient averaging; Farhadkhani et
    al., ICML 2022). Costs O(m^2 d + C(m, f) m^2). Raises SpecError if 2f >= m, or if there are more
    than 500,000 subsets.
    """
    m = setting.workers
    f = tolerated("mda", parameters.f, setting)
    check_number("mda", m, f, MOST_SUBSETS)

    def weigh(gram: Tensor) -> Tensor:
        return torch.zeros_like(gram[0]).index_fill(0, closest(squared_distances(gram), f), 1)

    return weighing(weigh, None)


@opaque(
    "closest(Tensor distances, int f) -> Tensor",
    lambda distances, f: distances.new_empty(len(distances) - f, dtype=torch.int64),
)
def closest(distances: Tensor, f: int) -> Tensor:
    """Return the indices [m - f] of the first set with the smallest diameter, from distances [m,
    m].
    """
    m = len(distances)
    members = subsets(m, m - f, distances.device)
    diameters = torch.zeros(len(members), dtype=distances.dtype, device=distances.device)
    for k in range(1, m - f):  # the k-th member's distances to earlier members
        to_earlier = distances[members[:, k : k + 1], members[:, :k]]
        diameters = torch.maximum(diameters, to_earlier.amax(1))
    return members.index_select(0, diameters.argmin().view(1))[0]
