"""From gradients to an aggregate: the attack, the workers' memory and the aggregation rule, as one function to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from dynabro_cli.attacks._api import honest_mean
from dynabro_cli.simulation.parts import Parts

States = dict[str, Tensor]


class Question(NamedTuple):
    """The gradients of one prefix of a round's mini-batches, and who is Byzantine. m counts the workers that answer.

    Attributes:
        total: Sums of gradients [m, d]; the first k rows count.
        places: The row of ``total`` that is each worker's, [m]; None where it is its own.
        batches: The number of mini-batches in the sums, a tensor of one number; None stands for 1.
        byzantine: The mask [m].
        ever: The mask [m] of the workers that were Byzantine at some time of the round.
        attacked: Whether the gradients have been attacked already.
        judged: Whether the aggregate's distance from the honest mean is wanted.
        answering: The numbers of the workers that answer, in the order of the rows; None where all do.
        workers: How many there are, whether they answer or not.
    """

    total: Tensor
    places: Tensor | None
    batches: Tensor | None
    byzantine: Tensor
    ever: Tensor
    attacked: bool
    judged: bool
    answering: Tensor | None = None
    workers: int = 0


class Answer(NamedTuple):
    """The aggregate [d], its distance from the mean of the honest messages where wanted, and the next states."""

    aggregate: Tensor
    error: Tensor | None
    method: States
    aggregator: States


def make_server(parts: Parts) -> Callable[[Question, States, States, States], Answer]:
    """Put attack, method and aggregator together; the states are the attack's, the method's and the aggregator's."""
    send, aggregate = make_messages(parts), parts.aggregator.aggregate

    def answer(question: Question, of_attack: States, of_method: States, of_aggregator: States) -> Answer:
        batches = question.batches
        messages, of_method = send(question, of_attack, of_method)
        result, of_aggregator = aggregate(messages, of_aggregator, 1 if batches is None else batches)
        error = (result - honest_mean(messages, question.ever)).norm() if question.judged else None
        return Answer(result, error, of_method, of_aggregator)

    return answer


def make_messages(parts: Parts) -> Callable[[Question, States, States], tuple[Tensor, States]]:
    """What reaches the server of a question, [m, d], and the method's next state; the states are the attack's and its."""
    attack, method, entry = parts.attack.messages, parts.method, parts.spec.attack_entry

    def messages_of(question: Question, of_attack: States, of_method: States) -> tuple[Tensor, States]:
        total, batches = question.total, question.batches
        own = total if question.places is None else total.index_select(0, question.places)
        own = own if batches is None else own / batches
        if entry == "gradient" and not question.attacked:
            own = attack(own, question.byzantine, of_attack)
        messages, sent = method.send(own, _rows(of_method, question.answering))
        if entry != "gradient":
            messages = attack(messages, question.byzantine, of_attack)
            if entry == "state":
                sent = method.keep(messages, sent)
        return messages, _put_back(of_method, sent, question)

    return messages_of


def _rows(state: States, answering: Tensor | None) -> States:
    """The part of a method's state that belongs to the workers that answer."""
    return state if answering is None else {name: value.index_select(0, answering) for name, value in state.items()}


def _put_back(state: States, part: States, question: Question) -> States:
    """The method's state with the part of those that answered renewed: it begins at 0 (see ``Method.by_row``)."""
    answering = question.answering
    if answering is None:
        return part
    whole = state or {name: value.new_zeros(question.workers, *value.shape[1:]) for name, value in part.items()}
    return {name: whole[name].index_copy_(0, answering, value) for name, value in part.items()}
