"""Bulyan, based on Krum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    declared,
    stateless,
)
from dynabro_cli.components.aggregators._order import nearest_mean
from dynabro_cli.components.aggregators._selection import refuse_f
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.gram import gram, squared_distances
from dynabro_cli.core.vectors.operators import opaque

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


@REGISTRY.register(
    "bulyan", Parameters, reference="El Mhamdi, Guerraoui & Rouault, ICML 2018 (Section 4)"
)
def bulyan(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Bulyan: messages chosen by Krum one after another, and the mean around their median.

    Of the n messages not chosen yet, Krum chooses the one with the lowest sum of squared distances
    to its n - f - 2 nearest others (the lowest index wins a tie), until theta = m - 2f are chosen.
    A(g_1, ..., g_m)_k = mean of the theta - 2f chosen values nearest to their median.

    No kappa is proved. Costs O(m^2 d + m^3 log m). Raises SpecError unless m >= 4f + 3.

    Differs from the paper: the paper does not define Krum's score once fewer than 2f + 3 messages
    are left; here the score counts at least one neighbour. With even theta the median is the
    midpoint of the two middle values, not one of them. Of two values equally far from the median
    the smaller one counts.
    """
    m = setting.workers
    f = setting.byzantine if parameters.f is None else parameters.f
    refuse_f("bulyan", f, m, 4, "m >= 4f + 3")
    theta = m - 2 * f

    def rule(messages: Tensor) -> Tensor:
        chosen = choose(squared_distances(gram(messages)), f, theta)
        return nearest_mean(messages.index_select(0, chosen), (theta - 1) // 2, 2 * f)

    return stateless(rule, None)


@opaque(
    "choose(Tensor distances, int f, int count) -> Tensor",
    lambda distances, f, count: distances.new_empty(count, dtype=torch.int64),
)
def choose(distances: Tensor, f: int, count: int) -> Tensor:
    """Return the indices [count] of the messages that Krum chooses one after another, from squared
    distances [m, m].
    """
    m = distances.shape[0]
    # two messages that are nearest to each other tie, whatever the rounding
    distances = distances.triu() + distances.triu().mT
    # for infinitely distant messages, which can still be chosen
    largest = torch.finfo(distances.dtype).max
    distances = distances.clamp_max(largest / m).fill_diagonal_(math.inf)
    gone = torch.zeros(m, dtype=torch.bool, device=distances.device)
    chosen = []
    for remaining in range(m, m - count, -1):
        others = torch.where(gone, math.inf, distances).sort(1).values
        scores = others[:, : min(remaining - 1, max(1, remaining - f - 2))].sum(1)
        best = torch.where(gone, math.inf, scores).argmin().view(1)
        gone = gone.index_fill(0, best, True)
        chosen.append(best)
    return torch.cat(chosen)
