"""From gradients to an aggregate: the attack, the workers' memory and the aggregation rule, as one function to compile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.aggregators._finite import sound
from dynabro_cli.attacks._api import honest_mean
from dynabro_cli.simulation.defence import Strike, make_strike
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
        learned: Whether the attack is to learn from these vectors; it is told of a round's once.
    """

    total: Tensor
    places: Tensor | None
    batches: Tensor | None
    byzantine: Tensor
    ever: Tensor
    attacked: bool
    judged: bool
    learned: bool = False


class Answer(NamedTuple):
    """The aggregate [d], its distance from the mean of the honest messages where wanted, and the next states.

    That of the attack is there where it has learned.
    """

    aggregate: Tensor
    error: Tensor | None
    method: States
    aggregator: States
    attack: States | None = None


class Server(NamedTuple):
    """``answer`` takes a question and the states of attack, method and aggregator; ``strike`` is the attack by itself."""

    answer: Callable[[Question, States, States, States], Answer]
    strike: Strike


def make_server(parts: Parts) -> Server:
    """Put attack, method and aggregator together, compiled where the run is.

    Where the attack sees the defence it asks for many aggregates in a round, one after the other: then it is the rule that is
    compiled, once, and not all that becomes of a question.
    """
    attack, method = parts.attack, parts.method
    aggregate = parts.aggregator.of_sound or parts.aggregator.aggregate
    if attack.sees_defence:
        aggregate = parts.compiler(aggregate)
    entry, strike = parts.spec.attack_entry, make_strike(parts, aggregate)

    def answer(question: Question, of_attack: States, of_method: States, of_aggregator: States) -> Answer:
        total, batches = question.total, question.batches
        count = 1 if batches is None else batches
        learned: States | None = None
        own = total if question.places is None else total.index_select(0, question.places)
        own = own if batches is None else own / batches
        if entry == "gradient" and not question.attacked:
            if question.learned and attack.observe is not None:
                learned = attack.observe(own, question.byzantine, of_attack)
            own = strike(own, question.byzantine, of_attack, of_method, of_aggregator, count)
        messages, of_method = method.send(own, of_method)
        if entry in ("message", "state"):
            if question.learned and attack.observe is not None:
                learned = attack.observe(messages, question.byzantine, of_attack)
            messages = strike(messages, question.byzantine, of_attack, of_method, of_aggregator, count)
            if entry == "state":
                of_method = method.keep(messages, of_method)
        clean, finite = sound(messages)
        result, of_aggregator = aggregate(clean, of_aggregator, count)
        error = _error(result, clean, finite, question.ever, attack.finite) if question.judged else None
        return Answer(result, error, of_method, of_aggregator, learned)

    return Server(answer if attack.sees_defence else parts.compiler(answer), strike)


def _error(result: Tensor, clean: Tensor, finite: Tensor | None, ever: Tensor, sends_numbers: bool) -> Tensor:
    """The distance of the aggregate from the mean of the honest messages; NaN where one of these is not finite.

    Except where that is the attack's doing: a worker may send what its memory has kept of a time when it was Byzantine, and
    counts as Byzantine then. The distance is NaN where no worker is left.

    Args:
        result: The aggregate [d].
        clean: The messages [m, d], without NaN and Inf.
        finite: The mask [m] of the workers that sent none; None where nobody did.
        ever: The mask [m] of the workers that were Byzantine at some time of the round.
        sends_numbers: Whether the attack sends nothing but numbers.
    """
    if finite is None:
        return _distance(result, clean, ever)
    if sends_numbers:
        return torch.where((finite | ever).all(), _distance(result, clean, ever), math.nan)
    ever = ever | ~finite
    return torch.where(ever.all(), math.nan, _distance(result, clean, ever))


def _distance(result: Tensor, clean: Tensor, ever: Tensor) -> Tensor:
    distance: Tensor = (result - honest_mean(clean, ever)).norm()
    return distance
