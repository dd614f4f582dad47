"""Phocas."""

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
        help="values cut off at each end, and left out of the mean; auto: the declared number "
        "of Byzantine",
    )


@REGISTRY.register(
    "phocas",
    Parameters,
    reference="Xie, Koyejo & Gupta, Phocas: dimensional Byzantine-resilient SGD, 2018",
)
def phocas(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Phocas: the mean around the trimmed mean, coordinate by coordinate.

    A(g_1, ..., g_m)_k = mean of the m - f values among g_{1,k}, ..., g_{m,k} that are nearest to
    their trimmed mean, which leaves out the f largest and the f smallest values, as in ``cwtm``.

    No kappa is proved. Costs O(m log^2(m) d). Raises SpecError if 2f >= m.

    Differs from the paper: the paper leaves ties open. Here, of two values equally far from the
    trimmed mean, the smaller one counts (not the one with the lowest index), so that the order of
    the workers does not matter.
    """
    f = tolerated("phocas", parameters.f, setting)
    return by_coordinate(lambda messages: nearest_mean(messages, f, f), None)
