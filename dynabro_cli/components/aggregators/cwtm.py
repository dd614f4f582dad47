"""Coordinate-wise trimmed mean."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    by_coordinate,
    declared,
    proved,
    tolerated,
)
from dynabro_cli.components.aggregators._order import middle_mean
from dynabro_cli.core.registration import parameter


@dataclass(frozen=True)
class Parameters:
    f: int | None = parameter(
        None,
        minimum=0,
        auto=declared,
        help="values cut off at each end; auto: the declared number of Byzantine",
    )


@REGISTRY.register(
    "cwtm",
    Parameters,
    reference="Yin, Chen, Ramchandran & Bartlett, ICML 2018 (Definition 2); kappa: Allouah et "
    "al., AISTATS 2023, Table 1",
)
def cwtm(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Coordinate-wise trimmed mean.

    A(g_1, ..., g_m)_k = mean of the sorted values g_(f+1),k <= ... <= g_(m-f),k: the f largest and
    the f smallest values of every coordinate are cut off. With m = 2f + 1 it is the coordinate-wise
    median.

    kappa = 6f/(m - 2f) (1 + f/(m - 2f)), if no more than f Byzantine workers are declared. Raises
    SpecError if 2f >= m.
    """
    m = setting.workers
    f = tolerated("cwtm", parameters.f, setting)
    ratio = f / (m - 2 * f)
    return by_coordinate(
        lambda messages: middle_mean(messages, f), proved(6 * ratio * (1 + ratio), f, setting)
    )
