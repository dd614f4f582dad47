"""The mean of the messages that are nearest to the coordinate-wise median."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.aggregators._api import REGISTRY, Aggregator, AggregatorSetting, declared, stateless, tolerated
from dynabro_cli.components import parameter
from dynabro_cli.lazy import torch
from dynabro_cli.vectors.lengths import lengths
from dynabro_cli.vectors.means import mean_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    f: int | None = parameter(None, minimum=0, auto=declared, help="messages left out; auto: the declared f")


@REGISTRY.register("my-aggregator", Parameters, reference="who, where, which algorithm")
def my_aggregator(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Mean of the m - f messages that are nearest to the coordinate-wise median.

    No kappa is proved. Raises SpecError if 2f >= m.
    """
    f = tolerated("my-aggregator", parameters.f, setting)

    def rule(messages: Tensor) -> Tensor:  # [m, d] -> [d]
        halves = messages / 2  # the difference of two large numbers may be too large
        distances = lengths(halves - halves.median(0).values)  # [m]
        nearest = distances.argsort(stable=True)[: setting.workers - f]
        chosen = torch.zeros_like(distances, dtype=torch.bool).index_fill(0, nearest, True)
        return mean_of(messages, chosen)

    return stateless(rule, kappa=None)
