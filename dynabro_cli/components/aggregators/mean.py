"""The mean: no defence."""

from __future__ import annotations

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    stateless,
)
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import NoParameters
from dynabro_cli.core.vectors.means import weighted


@REGISTRY.register("mean", reference="the baseline without defence")
def mean(_: NoParameters, setting: AggregatorSetting) -> Aggregator:
    """Mean of the messages: no defence, and the baseline to compare with.

    A(g_1, ..., g_m) = (1/m) sum_i g_i. One Byzantine worker can move it anywhere, so it is (0,
    0)-robust only.
    """
    return stateless(
        lambda messages: weighted(messages, messages.new_ones(len(messages))),
        0.0 if setting.byzantine == 0 else None,
    )._replace(weigh=lambda gram: torch.ones_like(gram[0]), coordinatewise=True)
