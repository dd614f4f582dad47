"""From gradients to an aggregate: the attack, the workers' memory and the aggregation rule, as one function to compile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.aggregators._finite import sound
from dynabro_cli.attacks._api import honest_mean
from dynabro_cli.simulation.parts import Parts

States = dict[str, Tensor]


class Question(NamedTuple):
    """The gradients of one prefix of a round's mini-batches, and who is Byzantine.

    Attributes:
        total: Sums of gradients [m, d]; the first k rows count.
        places: The row of ``total`` that is each worker's, [m]; None where it is its own.
        batches: The number of mini-batches in the sums, a tensor of one number; None stands for 1.
        byzantine: The mask [m].
        ever: The mask [m] of the workers that were Byzantine at some time of the round.
        attacked: Whether the gradients have been attacked already.
        judged: Whether the aggregate's distance from the honest mean is wanted.
    """

    total: Tensor
    places: Tensor | None
    batches: Tensor | None
    byzantine: Tensor
    ever: Tensor
    attacked: bool
    judged: bool


class Answer(NamedTuple):
    """The aggregate [d], its distance from the mean of the honest messages where wanted, and the next states."""

    aggregate: Tensor
    error: Tensor | None
    method: States
    aggregator: States


def make_server(parts: Parts) -> Callable[[Question, States, States, States], Answer]:
    """Put attack, method and aggregator together; the states are the attack's, the method's and the aggregator's."""
    attack, method = parts.attack.messages, parts.method
    aggregate = parts.aggregator.of_sound or parts.aggregator.aggregate
    entry = parts.spec.attack_entry

    def answer(question: Question, of_attack: States, of_method: States, of_aggregator: States) -> Answer:
        total, batches = question.total, question.batches
        own = total if question.places is None else total.index_select(0, question.places)
        own = own if batches is None else own / batches
        if entry == "gradient" and not question.attacked:
            own = attack(own, question.byzantine, of_attack)
        messages, of_method = method.send(own, of_method)
        if entry != "gradient":
            messages = attack(messages, question.byzantine, of_attack)
            if entry == "state":
                of_method = method.keep(messages, of_method)
        clean, finite = sound(messages)
        result, of_aggregator = aggregate(clean, of_aggregator, 1 if batches is None else batches)
        error = _error(result, clean, finite, question.ever) if question.judged else None
        return Answer(result, error, of_method, of_aggregator)

    return answer


def _error(result: Tensor, clean: Tensor, finite: Tensor | None, ever: Tensor) -> Tensor:
    """The distance of an aggregate from the mean of the honest messages; NaN where one of these is not finite."""
    error = (result - honest_mean(clean, ever)).norm()
    return error if finite is None else torch.where((finite | ever).all(), error, math.nan)
