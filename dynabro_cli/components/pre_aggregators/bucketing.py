"""Bucketing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.aggregators._draws import Draws
from dynabro_cli.components.pre_aggregators._api import REGISTRY, PreAggregator
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.means import means_of_groups

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    s: int = parameter(2, minimum=1, help="messages per bucket")


@REGISTRY.register(
    "bucketing",
    Parameters,
    reference="Karimireddy, He & Jaggi, ICLR 2022 (Algorithm 1)",
)
def bucketing(parameters: Parameters, setting: AggregatorSetting) -> PreAggregator:
    """Bucketing: the means of random groups of s messages, drawn again in every call.

    With pi a permutation of the workers, y_j = mean of g_pi((j-1) s + 1), ..., g_pi(min(j s, m))
    for j = 1, ..., ceil(m/s); the last bucket has the rest. f stays f, among ceil(m/s) messages.

    The permutation of call t = 0, 1, ... depends only on the seed and t. t is part of the
    aggregator's state, so that a resumed run draws the same permutations. A round of a multi-level
    method (``dynabro``) makes up to three calls, one for each of the levels 0, J-1 and J.

    No kappa: the proved result holds in expectation over the permutation. Costs O(m^2 d/s). Raises
    SpecError if 2f >= ceil(m/s) with f the declared number of Byzantine workers, because these
    could be in half of the buckets.
    """
    m, s, f = setting.workers, parameters.s, setting.byzantine
    buckets = -(-m // s)
    if 2 * f >= buckets:
        fitting = [size for size in range(1, min(s, m + 1)) if 2 * f < -(-m // size)]
        advice = (
            f"Try: 'bucketing:s={fitting[-1]}'"
            if fitting
            else f"Try: byzantine={(m - 1) // 2} at most"
        )
        raise SpecError(
            f"pre-aggregator 'bucketing': s={s} makes {buckets} messages of {m}, and f={f} "
            "Byzantine workers could be in "
            f"half of them. {advice}"
        )
    draws = Draws(setting.seed)

    def mix(messages: Tensor, call: int | Tensor = 0) -> Tensor:
        order = draws.permutation(call, m, messages.device)
        return means_of_groups(messages.index_select(0, order), s)

    return PreAggregator(mix, buckets, lambda _: None, numbered=True, coordinatewise=True)
