"""The attack as a function of a round's vectors; if it sees the defence, it gets aggregates without
changing the server.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynabro_cli.components.attacks._api import BEFORE_MEMORY, Defence, honest_mean
from dynabro_cli.components.methods._api import JudgingMethod, senders
from dynabro_cli.simulation.round.decision import Decide
from dynabro_cli.simulation.round.identities import Tick
from dynabro_cli.simulation.round.parts import Parts, Question, State, States, rows_of

Attacker = Callable[[Tensor, Question, States, States, States], Tensor]


def make_attacker(parts: Parts, decide: Decide) -> Attacker:
    """Return the attack as a function of the workers' vectors, the question, and the states of
    attack, method and aggregator.

    Args:
        parts: The parts of the run.
        decide: The server's decision.
    """
    attack, enters, send = parts.attack, parts.spec.attack_entry, senders(parts.method).send

    def made_of(vectors: Tensor, question: Question, of_method: States) -> Tensor:
        """Return the messages that the workers would send; the method updates a copy of its
        state.
        """
        return (
            vectors
            if enters not in BEFORE_MEMORY
            else send(vectors, copied(rows_of(of_method, question)))[0]
        )

    def attacker(
        gradients: Tensor,
        question: Question,
        of_attack: States,
        of_method: States,
        of_aggregator: States,
    ) -> Tensor:
        if not attack.sees_defence:
            return attack.messages(gradients, question.byzantine, of_attack)
        seen = Defence(
            honest_mean(made_of(gradients, question, of_method), question.byzantine),
            lambda vectors: (
                decide(
                    made_of(vectors, question, of_method),
                    question,
                    copied(of_method),
                    of_aggregator,
                ).aggregate
            ),
        )
        return attack.messages(gradients, question.byzantine, of_attack, seen)

    return attacker


def attack_computation(
    parts: Parts,
    state: State,
    attacker: Attacker,
    gradients: Tensor,
    tick: Tick,
    answering: Tensor | None,
    server: Tensor | None,
    *,
    learns: bool,
) -> Tensor:
    """Attack the gradients [m, d] of one computation; put the attack's next state into ``state``.

    An attack that sees the defence sees its answer to only this computation's gradients.

    Args:
        parts: The parts of the run.
        state: The state of the run.
        attacker: The attack as a function.
        gradients: The gradients.
        tick: The Byzantine set of this computation.
        answering: The numbers of the workers that answer, on the device; None if all answer.
        server: The server's gradient of this computation, if attack and rule need it; else None.
        learns: True if the attack learns from the gradients and its state advances, as after a
            round.
    """
    question = Question(
        total=gradients,
        places=None,
        batches=None,
        byzantine=tick.byzantine,
        ever=tick.byzantine,
        attacked=False,
        judged=False,
        x=parts.problem.x if isinstance(parts.method, JudgingMethod) else None,
        answering=answering,
        server=server,
    )
    vectors = attacker(gradients, question, state.attack, state.method, state.aggregator)
    if learns:
        learn(parts, state, gradients, tick.byzantine)
        state.attack = parts.attack.advance(tick.byzantine, state.attack)
    return vectors


def learn(parts: Parts, state: State, vectors: Tensor, byzantine: Tensor) -> None:
    """Let the attack learn from the workers' own vectors [m, d], if it learns."""
    if parts.attack.observe is not None:
        state.attack = parts.attack.observe(vectors, byzantine, state.attack)


def advance(parts: Parts, state: State, question: Question, learned: States | None) -> None:
    """Advance the attack after a round; ``learned`` is the attack's state if the server has updated
    it.
    """
    state.attack = parts.attack.advance(
        question.byzantine, state.attack if learned is None else learned
    )


def copied(state: States) -> States:
    """Return a copy of a state, for functions that may update it in place."""
    return {name: value.clone() for name, value in state.items()}
