"""Mean around the median."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    by_coordinate,
    declared,
    tolerated,
)
from dynabro_cli.components.aggregators._order import nearest_mean
from dynabro_cli.core.registration import parameter


@dataclass(frozen=True)
class Parameters:
    f: int | None = parameter(
        None,
        minimum=0,
        auto=declared,
        help="values left out of every coordinate; auto: the declared number of Byzantine",
    )


@REGISTRY.register(
    "meamed", Parameters, reference="Xie, Koyejo & Gupta, Generalized Byzantine-tolerant SGD, 2018"
)
def meamed(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Mean around the median (MeaMed), coordinate by coordinate.

    A(g_1, ..., g_m)_k = mean of the m - f values among g_{1,k}, ..., g_{m,k} that are nearest to
    their median, which with even m is the midpoint of the two middle values.

    No kappa is proved. Costs O(m log^2(m) d). Raises SpecError if 2f >= m.

    Differs from the paper: the paper leaves ties open. Here, of two values equally far from the
    median, the smaller one counts (not the one with the lowest index), so that the order of the
    workers does not matter.
    """
    m = setting.workers
    f = tolerated("meamed", parameters.f, setting)
    return by_coordinate(lambda messages: nearest_mean(messages, (m - 1) // 2, f), None)
