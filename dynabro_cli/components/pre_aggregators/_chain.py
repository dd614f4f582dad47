"""Pre-aggregators and the rule after them as one aggregator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynabro_cli.components.aggregators._api import Aggregate, Aggregator, AggregatorSetting, State
from dynabro_cli.components.pre_aggregators._api import PreAggregator
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import PLUS, Component, split_text
from dynabro_cli.core.vectors.finite import sound
from dynabro_cli.core.vectors.gram import gram
from dynabro_cli.core.vectors.means import weighted

if TYPE_CHECKING:
    from torch import Tensor

CALLS = "calls of the chain"
"""The entry of the aggregator's state that counts calls, if a stage is numbered."""


def split_chain(text: str) -> list[str]:
    """Return the components' texts of a chain such as ``nnm+nnm:f=1``; empty for ``none``."""
    return [] if text == "none" else split_text(text, PLUS)


def build_chain(
    aggregator: Component[Any],
    pre_aggregators: Sequence[Component[Any]],
    setting: AggregatorSetting,
) -> Aggregator:
    """Build ``aggregator`` after ``pre_aggregators``, with the kappa of the whole chain if it is
    proved.

    Raises:
        SpecError: A part of the chain is not defined for its number of workers and f.
    """
    return build_stages(aggregator, pre_aggregators, setting)[0]


def build_stages(
    aggregator: Component[Any],
    pre_aggregators: Sequence[Component[Any]],
    setting: AggregatorSetting,
) -> tuple[Aggregator, tuple[AggregatorSetting, ...]]:
    """Build a chain like ``build_chain``; also return the setting of each stage, the rule's
    last.
    """
    workers, stages, settings = setting.workers, list[PreAggregator](), [setting]
    for component in pre_aggregators:
        stages.append(_built(component, setting, workers))
        setting = dataclasses.replace(setting, workers=stages[-1].workers)
        settings.append(setting)
    return _chained(stages, _built(aggregator, setting, workers)), tuple(settings)


def _chained(stages: Sequence[PreAggregator], rule: Aggregator) -> Aggregator:
    """Put the stages before the rule.

    Messages of workers that send a NaN or an Inf are replaced (``sound``), except for callers of
    ``of_sound``. A rule with its own ``of_sound`` replaces them itself if no stage is before it.
    """
    kappa = rule.kappa
    for stage in reversed(stages):
        kappa = None if kappa is None else stage.kappa(kappa)

    last = rule.of_sound or rule.aggregate

    def plain(messages: Tensor, state: State, batches: int | Tensor) -> tuple[Tensor, State]:
        for stage in stages:
            messages = stage.mix(messages)
        return last(messages, state, batches)

    def weighing(messages: Tensor, state: State, _: int | Tensor) -> tuple[Tensor, State]:
        return weighted(messages, weights_of(stages, rule, gram(messages))), state

    def numbered(messages: Tensor, state: State, batches: int | Tensor) -> tuple[Tensor, State]:
        of_rule = {name: tensor for name, tensor in state.items() if name != CALLS}
        calls = (
            state[CALLS]
            if CALLS in state
            else torch.zeros((), dtype=torch.int64, device=messages.device)
        )
        for place, stage in enumerate(stages):
            # two stages of a call have different numbers
            messages = (
                stage.mix(messages, calls * len(stages) + place)
                if stage.numbered
                else stage.mix(messages)
            )
        result, of_rule = last(messages, of_rule, batches)
        return result, of_rule | {CALLS: calls + 1}

    of_sound: Aggregate = plain
    if any(stage.numbered for stage in stages):
        of_sound = numbered
    elif stages and rule.weigh is not None and all(stage.weigh is not None for stage in stages):
        of_sound = weighing

    def aggregate(messages: Tensor, state: State, batches: int | Tensor) -> tuple[Tensor, State]:
        return of_sound(sound(messages)[0], state, batches)

    later = rule.at_threshold
    at_threshold = None if later is None else lambda threshold: _chained(stages, later(threshold))
    return Aggregator(
        aggregate if stages or rule.of_sound is None else rule.aggregate,
        kappa,
        of_sound,
        rule.by_number,
        needs_server=rule.needs_server,
        at_threshold=at_threshold,
    )


def weights_of(stages: Sequence[PreAggregator], rule: Aggregator, products: Tensor) -> Tensor:
    """Return the messages' weights [m] in the aggregate, from their Gram matrix [m, m]; all parts
    have ``weigh``.
    """
    tables: list[Tensor] = []
    for stage in stages:
        table = stage.weigh(products)  # type: ignore[misc]
        totals = table.sum(1, keepdim=True)
        shares = table / totals
        products = shares @ products @ shares.mT
        # not the shares: sums of whole numbers have no rounding
        tables.append(table * (totals.amax() / totals))
    weights = rule.weigh(products)  # type: ignore[misc]
    for table in reversed(tables):
        weights = weights @ table / 2.0 ** len(products).bit_length()
    return weights


def _built(component: Component[Any], setting: AggregatorSetting, workers: int) -> Any:
    """Build the component in its setting; errors mention a number of workers other than the
    run's.
    """
    try:
        return component.build(setting)
    except SpecError as error:
        if setting.workers == workers:
            raise
        note = f" (the pre-aggregators before it leave {setting.workers} messages of {workers})"
        raise SpecError([problem + note for problem in error.problems]) from error
