"""Messages are shortened to the median of their lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.aggregators._api import AggregatorSetting
from dynabro_cli.components import NoParameters
from dynabro_cli.pre_aggregators._api import REGISTRY, PreAggregator
from dynabro_cli.vectors.lengths import clipped, lengths

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register("my-pre-aggregator", reference="who, where, which algorithm")
def my_pre_aggregator(_: NoParameters, setting: AggregatorSetting) -> PreAggregator:
    """Clipping to the median length: y_i = g_i min(1, c/|g_i|), with c the median of |g_1|, ..., |g_m|.

    No kappa is proved.
    """

    def mix(messages: Tensor) -> Tensor:  # [m, d] -> [m, d]
        norms = lengths(messages)
        return clipped(messages, norms, norms.median())

    return PreAggregator(mix, workers=setting.workers, kappa=lambda _: None)
