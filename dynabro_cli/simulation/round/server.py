"""The attack, the workers' memory and the server's decision, from gradients to aggregate, as
functions to compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.components.attacks._api import BEFORE_MEMORY, honest_mean, replace
from dynabro_cli.components.methods._api import senders
from dynabro_cli.core.vectors.lengths import length
from dynabro_cli.simulation.round.attacker import Attacker, make_attacker
from dynabro_cli.simulation.round.decision import Decision, make_decide
from dynabro_cli.simulation.round.parts import Parts, Question, States, put_back, rows_of


class Answer(NamedTuple):
    """The aggregate [d], its distance from the mean of the honest messages if requested, and the
    next states.

    ``attack`` is None unless the attack updated its state; ``spread`` is None unless the method
    measures it.
    """

    aggregate: Tensor
    error: Tensor | None
    method: States
    aggregator: States
    attack: States | None = None
    spread: Tensor | None = None


class Sent(NamedTuple):
    """The messages that reach the server, [m, d], and the next states of method and attack.

    ``attack`` is None unless the attack has learned.
    """

    messages: Tensor
    method: States
    attack: States | None


class Server(NamedTuple):
    """The answer to a question, and its steps; states are the states of attack, method and
    aggregator.

    Attributes:
        answer: All steps, compiled if the run compiles. Takes the question and the three states,
            and the messages if they are already known, because an attack that sees the defence
            needs twenty aggregates to make them.
        attacker: The attack alone, as a function.
        messages: The first half: the messages that reach the server.
        aggregate: The aggregate of other messages; takes messages, question, and the states of
            method and aggregator.
    """

    answer: Callable[..., Answer]
    attacker: Attacker
    messages: Callable[[Question, States, States, States], Sent]
    aggregate: Callable[[Tensor, Question, States, States], Tensor]


def make_server(parts: Parts) -> Server:
    """Put attack, method and aggregator together.

    The two halves are compiled separately, because the probe of the acceptance ratio aggregates
    other messages. On a GPU nothing is compiled.

    An attack that sees the defence asks for many aggregates in a round, one after the other. Then
    only the rule is compiled, once, not the whole answer.
    """
    attack, spread_of, settle = parts.attack, senders(parts.method).spread, parts.method.settle
    draws = parts.draws
    decide = draws("aggregation", make_decide(parts, compiled=attack.sees_defence))
    attacker = draws("attack", make_attacker(parts, decide))
    send = draws("attack", make_messages(parts, attacker))

    def conclude(
        messages: Tensor,
        question: Question,
        of_method: States,
        of_aggregator: States,
        learned: States | None,
    ) -> Answer:
        made = decide(messages, question, of_method, of_aggregator)
        error = _error(made, attack.finite) if question.judged else None
        result, of_method = made.aggregate, made.method
        spread = None
        if spread_of is not None and question.first:
            spread = spread_of(made.clean, made.finite, result)
        if settle is not None:
            result, of_method = settle(result, of_method)
        return Answer(result, error, of_method, made.aggregator, learned, spread)

    first, second = send, conclude
    if not attack.sees_defence:
        first, second = parts.compiler(send), parts.compiler(conclude)
    # a compiled function cannot seed, so the generators are seeded around it
    first, second = draws("attack", first), draws("aggregation", second)

    def answer(
        question: Question,
        of_attack: States,
        of_method: States,
        of_aggregator: States,
        sent: Sent | None = None,
    ) -> Answer:
        sent = sent or first(question, of_attack, of_method, of_aggregator)
        return second(sent.messages, question, sent.method, of_aggregator, sent.attack)

    def aggregate(
        messages: Tensor, question: Question, of_method: States, of_aggregator: States
    ) -> Tensor:
        if settle is not None:  # the second half would settle
            return decide(messages, question, of_method, of_aggregator).aggregate
        return second(messages, question, of_method, of_aggregator, None).aggregate

    return Server(answer, attacker, first, aggregate)


def make_messages(
    parts: Parts, attacker: Attacker
) -> Callable[[Question, States, States, States], Sent]:
    """Return the function from the workers' gradients to their messages; it includes the attack on
    gradients or messages.
    """
    attack, workers, entry = parts.attack, senders(parts.method), parts.spec.attack_entry

    def messages_of(
        question: Question, of_attack: States, of_method: States, of_aggregator: States
    ) -> Sent:
        total, batches, learned = question.total, question.batches, None
        vectors = total if question.places is None else total.index_select(0, question.places)
        vectors = vectors if batches is None else vectors / batches
        if entry in BEFORE_MEMORY and not question.attacked:
            if question.learned and attack.observe is not None:
                learned = attack.observe(vectors, question.byzantine, of_attack)
            vectors = attacker(vectors, question, of_attack, of_method, of_aggregator)
        before = rows_of(of_method, question)
        messages, sent = workers.send(vectors, before)
        if entry in ("message", "state"):
            if question.learned and attack.observe is not None:
                learned = attack.observe(messages, question.byzantine, of_attack)
            raw = vectors if question.gradients is None else question.gradients
            attacked = attacker(
                raw if attack.of_gradients else messages,
                question,
                of_attack,
                of_method,
                of_aggregator,
            )
            messages = (
                replace(messages, question.byzantine, attacked) if attack.of_gradients else attacked
            )
            if entry == "state":
                sent = workers.keep(messages, sent)
        if workers.recall is not None:
            sent = workers.recall(before, sent, question.byzantine)
        return Sent(messages, put_back(of_method, sent, question, parts.spec.workers), learned)

    return messages_of


def _error(made: Decision, sends_numbers: bool) -> Tensor:
    """Return the distance of the aggregate from the mean of the honest messages; NaN if an honest
    message is not finite.

    A worker whose memory still contains an attack's NaN or Inf counts as Byzantine. The distance is
    NaN if no worker is left.

    Args:
        made: The aggregate, with its ingredients.
        sends_numbers: True if the attack sends only finite numbers.
    """
    finite, ever = made.finite, made.ever
    if finite is None:
        return _distance(made, ever)
    if sends_numbers:
        return torch.where((finite | ever).all(), _distance(made, ever), math.nan)
    ever = ever | ~finite
    return torch.where(ever.all(), math.nan, _distance(made, ever))


def _distance(made: Decision, ever: Tensor) -> Tensor:
    return length(made.aggregate - honest_mean(made.clean, ever))
