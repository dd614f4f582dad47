"""From gradients to an aggregate: the attack, the workers' memory and the aggregation rule, as one function to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.aggregators._api import Aggregator
from dynabro_cli.attacks._api import honest_mean
from dynabro_cli.simulation.parts import Parts

States = dict[str, Tensor]
ALL, SOME = "all ", "cohort "
"""What the names of a rule's state begin with, where a method has rounds of two kinds."""


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
        x: The model [d], for a method that filters by itself; else None.
        cohort: The numbers of the workers whose messages are aggregated, on the device; None for all.
    """

    total: Tensor
    places: Tensor | None
    batches: Tensor | None
    byzantine: Tensor
    ever: Tensor
    attacked: bool
    judged: bool
    x: Tensor | None = None
    cohort: Tensor | None = None


class Answer(NamedTuple):
    """The aggregate [d], its distance from the mean of the honest messages where wanted, and the next states."""

    aggregate: Tensor
    error: Tensor | None
    method: States
    aggregator: States


def make_server(parts: Parts) -> Callable[[Question, States, States, States], Answer]:
    """Put attack, method and aggregator together; the states are the attack's, the method's and the aggregator's."""
    attack, method, aggregate = parts.attack.messages, parts.method, parts.aggregator.aggregate
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
        if method.receive is not None:
            messages = method.receive(messages, of_method)
        ever = question.ever
        if question.cohort is not None:
            messages, ever = messages.index_select(0, question.cohort), ever.index_select(0, question.cohort)
        if method.judge is not None and question.x is not None:
            good, of_method = method.judge(messages, question.x, of_method)
            result = mean_of(messages, good)
        elif parts.cohort is not None:
            name, rule = (ALL, parts.aggregator) if question.cohort is None else (SOME, parts.cohort)
            result, of_aggregator = _apart(name, rule, messages, of_aggregator)
        else:
            result, of_aggregator = aggregate(messages, of_aggregator, 1 if batches is None else batches)
        error = (result - honest_mean(messages, ever)).norm() if question.judged else None
        if method.settle is not None:
            result, of_method = method.settle(result, of_method)
        return Answer(result, error, of_method, of_aggregator)

    return answer


def mean_of(messages: Tensor, counts: Tensor) -> Tensor:
    """The mean of the messages [m, d] of workers that count [m], whatever is in the others'; 0 where none counts."""
    return torch.where(counts[:, None], messages, 0).sum(0) / counts.sum().clamp_min(1)


def _apart(kind: str, rule: Aggregator, messages: Tensor, state: States) -> tuple[Tensor, States]:
    """Aggregate messages of one of two kinds, all workers' or a cohort's: what the rule remembers of each kind is apart."""
    own = {name.removeprefix(kind): value for name, value in state.items() if name.startswith(kind)}
    others = {name: value for name, value in state.items() if not name.startswith(kind)}
    result, own = rule.aggregate(messages, own, 1)
    return result, others | {kind + name: value for name, value in own.items()}
