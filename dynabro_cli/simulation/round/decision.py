"""The server's decision: the aggregate of the messages, by the method's own filter or by the
aggregation chain.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dynabro_cli.components.aggregators._api import SERVER, Aggregate, Aggregator
from dynabro_cli.components.methods._api import GatheringMethod, JudgingMethod
from dynabro_cli.core.vectors.finite import sound
from dynabro_cli.simulation.round.parts import Parts, Question, States

RECEIVED = "received"
"""Name of the workers' last messages in the state of a method that aggregates them."""
ALL, SOME = "all ", "cohort "
"""Prefixes of the names of a rule's state, for methods with two kinds of rounds."""


class Decision(NamedTuple):
    """The aggregate of a question's messages, with its ingredients.

    Attributes:
        aggregate: [d].
        clean: The messages of the participating workers [n, d], without NaN and Inf.
        finite: The mask [n] of workers with finite messages; None if all messages are finite.
        ever: The mask [n] of workers that were Byzantine at some time of the round.
        method: The method's next state.
        aggregator: The rule's next state.
    """

    aggregate: Tensor
    clean: Tensor
    finite: Tensor | None
    ever: Tensor
    method: States
    aggregator: States


class Decide(Protocol):
    """The decision as a function of messages [m, d], the question, and the states of method and
    aggregator.
    """

    def __call__(
        self, messages: Tensor, question: Question, of_method: States, of_aggregator: States, /
    ) -> Decision: ...


def make_decide(parts: Parts, *, compiled: bool = False) -> Decide:
    """Return the decision as a function of messages [m, d], the question, and the states of method
    and aggregator.

    Args:
        parts: The parts of the run.
        compiled: Compile each rule on its own (used if the whole answer cannot be compiled).
    """
    method = parts.method
    receive = method.receive if isinstance(method, GatheringMethod) else None
    judge = method.judge if isinstance(method, JudgingMethod) else None
    whole = _of_sound(parts, parts.aggregator, compiled)
    some = whole if parts.cohort is None else _of_sound(parts, parts.cohort, compiled)

    def decide(
        messages: Tensor, question: Question, of_method: States, of_aggregator: States, /
    ) -> Decision:
        if receive is not None:
            messages = receive(messages, of_method)
        ever = question.ever
        if question.everyone is not None and question.answering is not None:
            messages, ever = (
                with_delayed(messages, question.answering, of_method, len(question.everyone)),
                question.everyone,
            )
            of_method = of_method | {RECEIVED: messages}
        if question.cohort is not None:
            messages, ever = (
                messages.index_select(0, question.cohort),
                ever.index_select(0, question.cohort),
            )
        clean, finite = sound(messages)
        if finite is not None and (question.cohort is not None or question.answering is not None):
            # no worker sent finite numbers: the rule learns nothing in this round
            clean = clean.nan_to_num(nan=0.0)
        given = {} if question.server is None else {SERVER: question.server}
        if judge is not None and question.x is not None:
            good, of_method = judge(messages, question.x, of_method)
            result = mean_of(messages, good)
        elif parts.cohort is not None:
            name, rule = (ALL, whole) if question.cohort is None else (SOME, some)
            result, of_aggregator = _apart(name, rule, clean, of_aggregator, given)
        else:
            result, of_aggregator = whole(
                clean, of_aggregator | given, 1 if question.batches is None else question.batches
            )
        return Decision(result, clean, finite, ever, of_method, of_aggregator)

    return decide


def with_delayed(messages: Tensor, answering: Tensor, of_method: States, workers: int) -> Tensor:
    """Return every worker's last message [m, d], updated with the new ``messages`` [n, d]; 0 before
    a worker's first.
    """
    last = (
        of_method[RECEIVED]
        if RECEIVED in of_method
        else messages.new_zeros(workers, messages.shape[1])
    )
    return last.index_copy(0, answering, messages)


def mean_of(messages: Tensor, counts: Tensor) -> Tensor:
    """Return the mean of the messages [m, d] of workers that count [m]; 0 if none counts. Other
    messages are not read.
    """
    return torch.where(counts[:, None], messages, 0).sum(0) / counts.sum().clamp_min(1)


def _of_sound(parts: Parts, rule: Aggregator, compiled: bool) -> Aggregate:
    aggregate = rule.of_sound or rule.aggregate
    return parts.compiler(aggregate) if compiled else aggregate


def _apart(
    kind: str, rule: Aggregate, messages: Tensor, state: States, given: States
) -> tuple[Tensor, States]:
    """Aggregate messages of all workers or of a cohort; each of the two kinds has a separate state
    of the rule.
    """
    part = {
        name.removeprefix(kind): value for name, value in state.items() if name.startswith(kind)
    }
    others = {name: value for name, value in state.items() if not name.startswith(kind)}
    result, part = rule(messages, part | given, 1)
    return result, others | {kind + name: value for name, value in part.items()}
