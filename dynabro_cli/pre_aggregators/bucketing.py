"""Bucketing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dynabro_cli.aggregators._api import AggregatorSetting
from dynabro_cli.aggregators._draws import Draws
from dynabro_cli.components import parameter
from dynabro_cli.errors import SpecError
from dynabro_cli.pre_aggregators._api import REGISTRY, PreAggregator


@dataclass(frozen=True)
class Parameters:
    s: int = parameter(2, minimum=1, help="messages a bucket")


@REGISTRY.register("bucketing", Parameters, reference="Karimireddy, He & Jaggi, ICLR 2022 (Algorithm 1)")
def bucketing(parameters: Parameters, setting: AggregatorSetting) -> PreAggregator:
    """Bucketing: the means of s messages each, drawn at random anew in every call.

    With pi a permutation of the workers, y_j = mean of g_pi((j-1) s + 1), ..., g_pi(min(j s, m)) for j = 1, ...,
    ceil(m/s); the last bucket has the rest. f stays f, among ceil(m/s) messages.

    The permutation of call t = 0, 1, ... is a function of the seed and t; t is part of the aggregator's state, so that a
    resumed run goes on with it. A round of a multi-level method (``dynabro``) makes up to three calls, one for each of
    the levels 0, J-1 and J.

    No kappa: what is proved holds in expectation over the permutation. Costs O(m^2 d/s). Raises SpecError where 2f >=
    ceil(m/s) with f the declared number of Byzantine workers, as these could be in half of the buckets.
    """
    m, s, f = setting.workers, parameters.s, setting.byzantine
    buckets = -(-m // s)
    if 2 * f >= buckets:
        fitting = [size for size in range(1, s) if 2 * f < -(-m // size)]
        advice = f"type 'bucketing:s={fitting[-1]}'" if fitting else f"type --byzantine {(m - 1) // 2} at most"
        raise SpecError(
            f"pre-aggregator 'bucketing': s={s} makes {buckets} messages of {m}, and f={f} Byzantine workers could be in "
            f"half of them; {advice}"
        )
    draws = Draws(setting.seed)

    def mix(messages: Tensor, call: int | Tensor = 0) -> Tensor:
        bucket = torch.arange(m, device=messages.device) // s  # of each place of the permutation
        sizes = (m - bucket * s).clamp_max(s)
        weights = torch.zeros(buckets, m, dtype=messages.dtype, device=messages.device)
        order = draws.permutation(call, m, messages.device)
        return weights.index_put((bucket, order), 1 / sizes.to(messages.dtype)) @ messages

    return PreAggregator(mix, buckets, lambda _: None, numbered=True)
