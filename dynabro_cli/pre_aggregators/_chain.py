"""Pre-aggregators and the rule behind them, as one aggregator."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dynabro_cli.aggregators._api import Aggregator, AggregatorSetting, State
from dynabro_cli.aggregators._finite import sound
from dynabro_cli.components import Component
from dynabro_cli.errors import SpecError
from dynabro_cli.pre_aggregators._api import PreAggregator

CALLS = "calls of the chain"
"""The entry of the aggregator's state that counts calls, where a stage is numbered."""


def split_chain(text: str) -> list[str]:
    """The components' texts in ``nnm+nnm:f=1``; none in ``none``. The plus of a number such as 1e+2 joins nothing."""
    return [] if text == "none" else re.split(r"\+(?!\d)", text)


def build_chain(
    aggregator: Component[Any], pre_aggregators: Sequence[Component[Any]], setting: AggregatorSetting
) -> Aggregator:
    """Build ``aggregator`` behind ``pre_aggregators``, with the kappa of the whole chain where one is proved.

    Here the messages of workers that send a NaN or an Inf are replaced (``sound``), but for callers of ``of_sound``.

    Raises:
        SpecError: A part of the chain is not defined for its number of workers and f.
    """
    workers, stages = setting.workers, list[PreAggregator]()
    for component in pre_aggregators:
        stages.append(_built(component, setting, workers))
        setting = dataclasses.replace(setting, workers=stages[-1].workers)
    rule: Aggregator = _built(aggregator, setting, workers)
    kappa = rule.kappa
    for stage in reversed(stages):
        kappa = None if kappa is None else stage.kappa(kappa)

    def plain(messages: Tensor, state: State, batches: int | Tensor) -> tuple[Tensor, State]:
        for stage in stages:
            messages = stage.mix(messages)
        return rule.aggregate(messages, state, batches)

    def numbered(messages: Tensor, state: State, batches: int | Tensor) -> tuple[Tensor, State]:
        of_rule = {name: tensor for name, tensor in state.items() if name != CALLS}
        calls = state[CALLS] if CALLS in state else torch.zeros((), dtype=torch.int64, device=messages.device)
        for place, stage in enumerate(stages):
            # two stages of a call have a number of their own each
            messages = stage.mix(messages, calls * len(stages) + place) if stage.numbered else stage.mix(messages)
        result, of_rule = rule.aggregate(messages, of_rule, batches)
        return result, of_rule | {CALLS: calls + 1}

    of_sound = numbered if any(stage.numbered for stage in stages) else plain

    def aggregate(messages: Tensor, state: State, batches: int | Tensor) -> tuple[Tensor, State]:
        return of_sound(sound(messages)[0], state, batches)

    return Aggregator(aggregate, kappa, of_sound, rule.by_number)


def _built(component: Component[Any], setting: AggregatorSetting, workers: int) -> Any:
    """The component in its setting; its errors say where the number of workers is not the run's."""
    try:
        return component.build(setting)
    except SpecError as error:
        if setting.workers == workers:
            raise
        note = f" (the pre-aggregators before it leave {setting.workers} messages of {workers})"
        raise SpecError([problem + note for problem in error.problems]) from error
