"""MoNNA's aggregation: nearest-neighbour averaging around one worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    declared,
    stateless,
    tolerated,
)
from dynabro_cli.components.aggregators._selection import lowest
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import lengths
from dynabro_cli.core.vectors.means import mean_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    f: int | None = parameter(
        None,
        minimum=0,
        auto=declared,
        help="messages left out; auto: the declared number of Byzantine",
    )
    pivot: int = parameter(0, minimum=0, help="the trusted worker, counted from 0")


@REGISTRY.register(
    "monna",
    Parameters,
    reference="Farhadkhani, Guerraoui, Gupta, Hoang, Pinot & Stephan, ICML 2023 (Algorithm 1)",
)
def monna(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """MoNNA's nearest-neighbour averaging: the mean of the m - f messages nearest to the pivot's
    message.

    A(g_1, ..., g_m) = mean of the m - f messages with the smallest |g_i - g_pivot|, the pivot's
    among them; the lowest indices win ties.

    No kappa: the rule trusts its pivot. In a round in which the pivot is Byzantine, the rule
    follows it anywhere. Costs O(m d). Raises SpecError if 2f >= m, or if ``pivot`` is not the
    number of a worker.

    Differs from the paper: the paper has no server, and every honest worker averages around its own
    message. The momentum in MoNNA's name is a method here (``--method momentum``).
    """
    m = setting.workers
    f = tolerated("monna", parameters.f, setting)
    if parameters.pivot >= m:
        raise SpecError(
            f"aggregator 'monna': pivot={parameters.pivot} is not legal with {m} workers, "
            "which are counted from 0. "
            f"Try: 'monna:pivot=...' with at most {m - 1}"
        )

    def rule(messages: Tensor) -> Tensor:
        # halves, because a difference may overflow
        halves = (messages / 2).sub_(messages[parameters.pivot] / 2)
        return mean_of(messages, lowest(lengths(halves), m - f))

    return stateless(rule, None)._replace(by_number=True)
