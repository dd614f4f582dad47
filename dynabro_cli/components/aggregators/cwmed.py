"""Coordinate-wise median."""

from __future__ import annotations

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    by_coordinate,
    tolerated,
)
from dynabro_cli.components.aggregators._order import middle_mean
from dynabro_cli.core.registration import NoParameters


@REGISTRY.register(
    "cwmed",
    reference="Yin, Chen, Ramchandran & Bartlett, ICML 2018 (Definition 1); kappa: Allouah et "
    "al., AISTATS 2023, Table 1",
)
def cwmed(_: NoParameters, setting: AggregatorSetting) -> Aggregator:
    """Coordinate-wise median.

    A(g_1, ..., g_m)_k = median of g_{1,k}, ..., g_{m,k}; with even m the midpoint of the two middle
    values.

    kappa = 4 (1 + f/(m - 2f))^2 with f the declared number of Byzantine workers, which the rule
    itself does not use.
    """
    m = setting.workers
    f = tolerated("cwmed", None, setting)
    return by_coordinate(
        lambda messages: middle_mean(messages, (m - 1) // 2), 4 * (1 + f / (m - 2 * f)) ** 2
    )
