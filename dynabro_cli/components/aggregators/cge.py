"""Comparative gradient elimination."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    declared,
    stateless,
    tolerated,
)
from dynabro_cli.components.aggregators._selection import lowest
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import lengths
from dynabro_cli.core.vectors.means import mean_of


@dataclass(frozen=True)
class Parameters:
    f: int | None = parameter(
        None,
        minimum=0,
        auto=declared,
        help="messages left out; auto: the declared number of Byzantine",
    )


@REGISTRY.register(
    "cge", Parameters, reference="Gupta & Vaidya, PODC 2020; Gupta, Liu & Vaidya, DSN-W 2021 (CGE)"
)
def cge(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Comparative gradient elimination (CGE): the mean of the m - f shortest messages.

    A(g_1, ..., g_m) = mean of the m - f messages with the smallest |g_i|; the lowest indices win
    ties.

    No kappa: f Byzantine messages that are short are always averaged, wherever the others are.
    Costs O(m d). Raises SpecError if 2f >= m.

    Differs from the paper: the paper sums the messages; their mean has the same direction and 1/(m
    - f) times the length.
    """
    m = setting.workers
    f = tolerated("cge", parameters.f, setting)
    return stateless(lambda messages: mean_of(messages, lowest(lengths(messages), m - f)), None)
