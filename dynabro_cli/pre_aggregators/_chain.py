"""Pre-aggregators and the rule behind them, as one aggregator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dynabro_cli.aggregators._api import Aggregator, AggregatorSetting, State
from dynabro_cli.components import Component
from dynabro_cli.pre_aggregators._api import PreAggregator


def split_chain(text: str) -> list[str]:
    """The components' texts in ``nnm+nnm:f=1``; none in ``none``. The plus of a number such as 1e+2 joins nothing."""
    return [] if text == "none" else re.split(r"\+(?!\d)", text)


def build_chain(
    aggregator: Component[Any], pre_aggregators: Sequence[Component[Any]], setting: AggregatorSetting
) -> Aggregator:
    """Build ``aggregator`` behind ``pre_aggregators``, with the kappa of the whole chain where one is proved.

    Raises:
        SpecError: A part of the chain is not defined for its number of workers and f.
    """
    stages: list[PreAggregator] = []
    for component in pre_aggregators:
        stages.append(component.build(setting))
        setting = AggregatorSetting(stages[-1].workers, setting.byzantine, setting.threshold)
    rule: Aggregator = aggregator.build(setting)
    kappa = rule.kappa
    for stage in reversed(stages):
        kappa = None if kappa is None else stage.kappa(kappa)

    def aggregate(messages: Tensor, state: State, batches: int | Tensor) -> tuple[Tensor, State]:
        for stage in stages:
            messages = stage.mix(messages)
        return rule.aggregate(messages, state, batches)

    return Aggregator(aggregate, kappa, rule.by_number)
