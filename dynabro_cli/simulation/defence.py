"""What an attack that sees the defence is shown: what the server would make of other vectors, without making it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynabro_cli.attacks._api import Defence, honest_mean
from dynabro_cli.simulation.decision import Decide
from dynabro_cli.simulation.parts import Parts, State
from dynabro_cli.simulation.question import Question, States

Strike = Callable[[Tensor, Question, States, States, States], Tensor]


def make_strike(parts: Parts, decide: Decide) -> Strike:
    """The attack as a function of the workers' vectors, the question, and the states of attack, method and aggregator.

    Args:
        parts: What the run is made of.
        decide: What the server makes of messages.
    """
    attack, enters = parts.attack, parts.spec.attack_entry

    def made_of(vectors: Tensor, of_method: States) -> Tensor:
        """The messages that the workers would send; methods update their state in place, so they get a copy."""
        return vectors if enters != "gradient" else parts.method.send(vectors, _copy(of_method))[0]

    def strike(own: Tensor, question: Question, of_attack: States, of_method: States, of_aggregator: States) -> Tensor:
        if not attack.sees_defence:
            return attack.messages(own, question.byzantine, of_attack)
        seen = Defence(
            honest_mean(made_of(own, of_method), question.byzantine),
            lambda vectors: decide(made_of(vectors, of_method), question, _copy(of_method), of_aggregator).aggregate,
        )
        return attack.messages(own, question.byzantine, of_attack, seen)

    return strike


def strike_computation(
    parts: Parts, state: State, strike: Strike, own: Tensor, byzantine: Tensor, *, learns: bool, moves: bool
) -> Tensor:
    """The gradients of one computation [m, d], attacked by themselves; puts the attack's next state into ``state``.

    An attack that sees the defence sees what it would make of this computation's gradients alone.

    Args:
        parts: What the run is made of.
        state: Where it stands.
        strike: The attack.
        own: The gradients.
        byzantine: The mask [m] of this computation.
        learns: Whether the attack learns from them.
        moves: Whether its state moves on, as after a round.
    """
    x = parts.problem.x if parts.method.judge is not None else None
    question = Question(own, None, None, byzantine, byzantine, attacked=False, judged=False, x=x)
    vectors = strike(own, question, state.attack, state.method, state.aggregator)
    if learns and parts.attack.observe is not None:
        state.attack = parts.attack.observe(own, byzantine, state.attack)
    if moves:
        state.attack = parts.attack.advance(byzantine, state.attack)
    return vectors


def _copy(state: States) -> States:
    return {name: value.clone() for name, value in state.items()}
