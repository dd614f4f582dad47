"""Nearest-neighbour mixing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import AggregatorSetting, declared, proved, tolerated
from dynabro_cli.components.pre_aggregators._api import REGISTRY, PreAggregator
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.gram import central, gram, squared_distances
from dynabro_cli.core.vectors.means import mixed

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
    "nnm",
    Parameters,
    reference="Allouah, Farhadkhani, Guerraoui, Gupta, Pinot & Stephan, AISTATS 2023 "
    "(Algorithm 2; kappa: Lemma 5)",
)
def nnm(parameters: Parameters, setting: AggregatorSetting) -> PreAggregator:
    """Nearest-neighbour mixing (NNM).

    y_i = mean of the m - f messages nearest to g_i, including g_i itself; the lowest indices win
    ties.

    kappa of NNM before a rule with kappa_F is 8f/(m - f) (kappa_F + 1), if no more than f Byzantine
    workers are declared. Raises SpecError if 2f >= m.
    """
    m = setting.workers
    f = tolerated("nnm", parameters.f, setting)

    def nearest(products: Tensor) -> Tensor:
        order = squared_distances(products).sort(dim=1, stable=True).indices[:, : m - f]
        return torch.zeros_like(products).scatter_(1, order, 1)

    def mix(messages: Tensor) -> Tensor:
        products = gram(messages)
        return mixed(messages, nearest(products), central(products))

    return PreAggregator(
        mix, m, lambda kappa: proved(8 * f / (m - f) * (kappa + 1), f, setting), weigh=nearest
    )
