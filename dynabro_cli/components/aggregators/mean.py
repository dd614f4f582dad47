"""The mean: no defence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    State,
)
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import NoParameters
from dynabro_cli.core.vectors.finite import all_finite, host_may_look, sound
from dynabro_cli.core.vectors.means import unweighted

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register("mean", reference="the baseline without defence")
def mean(_: NoParameters, setting: AggregatorSetting) -> Aggregator:
    """Mean of the messages: no defence, and the baseline to compare with.

    A(g_1, ..., g_m) = (1/m) sum_i g_i. One Byzantine worker can move it anywhere, so it is (0,
    0)-robust only.
    """

    def of_sound(messages: Tensor, state: State, _: int | Tensor) -> tuple[Tensor, State]:
        return unweighted(messages), state

    def aggregate(messages: Tensor, state: State, batches: int | Tensor) -> tuple[Tensor, State]:
        if host_may_look(messages):
            result = of_sound(messages, state, batches)
            # a NaN or an Inf in a message is in the mean, too, which has fewer numbers to look at
            if all_finite(result[0]):
                return result
        return of_sound(sound(messages)[0], state, batches)

    return Aggregator(
        aggregate,
        0.0 if setting.byzantine == 0 else None,
        of_sound,
        weigh=lambda gram: torch.ones_like(gram[0]),
        coordinatewise=True,
    )
