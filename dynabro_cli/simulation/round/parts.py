"""Parts of a simulation, its state, and the question that the server answers in a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.components.aggregators._api import Aggregator
from dynabro_cli.components.attacks._api import Attack
from dynabro_cli.components.methods._api import Method
from dynabro_cli.components.switching._api import Switching
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.complete import CompleteSpec
from dynabro_cli.gradients.generators import Draws
from dynabro_cli.gradients.graphs import on_device
from dynabro_cli.simulation.compilation import Compiler
from dynabro_cli.simulation.problem.interface import Problem

States = dict[str, Tensor]
HELD = ("method", "aggregator", "attack")
"""The states that are on the device."""


def _no_compiler() -> Compiler:
    return Compiler("off", work=0, device=torch.device("cpu"))


@dataclass
class Parts:
    """Parts of a simulation.

    ``cohort`` aggregates if the method lets only some workers take part. ``answering`` maps a round
    to the numbers of the n workers that answer in it, in ascending order; None if all answer.
    ``code`` is the run's value of ``code_digests``. ``draws`` seeds the draws of a user's
    functions.
    """

    spec: CompleteSpec
    problem: Problem
    method: Method
    aggregator: Aggregator
    attack: Attack
    switching: Switching
    streams: Streams
    compiler: Compiler = field(default_factory=_no_compiler)
    cohort: Aggregator | None = None
    answering: Callable[[int], Tensor] | None = None
    code: str | None = None
    draws: Draws = field(default_factory=Draws)


@dataclass
class State:
    """State that changes from round to round, besides x, the problem's buffers and the step's sum
    of squares.
    """

    round: int = 0
    spent: int = 0
    mask: Tensor | None = None
    method: dict[str, Tensor] = field(default_factory=dict)
    aggregator: dict[str, Tensor] = field(default_factory=dict)
    attack: dict[str, Tensor] = field(default_factory=dict)
    switching: dict[str, Tensor] = field(default_factory=dict)


class Question(NamedTuple):
    """Question to the server, one for each prefix of a round's mini-batches: its gradients and the
    Byzantine set.

    m counts the workers that answer.

    Attributes:
        total: Sums of gradients [m, d]; the first k rows count.
        places: Each worker's row of ``total``, [m]; None if worker i has row i.
        batches: The number of mini-batches in the sums, a tensor of one number; None means 1.
        byzantine: The mask [m].
        ever: The mask [m] of the workers that were Byzantine at some time of the round.
        attacked: True if the gradients have already been attacked.
        judged: True to measure the aggregate's distance from the honest mean.
        learned: True if the attack learns from these vectors; it does so once per round.
        x: The model [d], for a method that filters workers itself; else None.
        cohort: The numbers of the workers whose messages are aggregated, on the device; None for
            all.
        answering: The numbers of the workers that answer, in the order of the rows; None if all
            answer.
        first: True for the vectors of the first prefix; the method may need their spread.
        gradients: The gradients [m, d] in the sums, for an attack on gradients; None if the sums
            are the gradients.
        server: The server's gradient [d], if the rule needs it; else None.
        everyone: Like ``ever``, but among all workers, if the server aggregates the last messages
            of all; else None.
    """

    total: Tensor
    places: Tensor | None
    batches: Tensor | None
    byzantine: Tensor
    ever: Tensor
    attacked: bool
    judged: bool
    learned: bool = False
    x: Tensor | None = None
    cohort: Tensor | None = None
    answering: Tensor | None = None
    first: bool = False
    gradients: Tensor | None = None
    server: Tensor | None = None
    everyone: Tensor | None = None


def server_gradient(parts: Parts, state: State, computation: int = 0) -> Tensor | None:
    """Return the server's gradient of one mini-batch at x_t, [d]; None if the rule does not need
    it.
    """
    if not parts.aggregator.needs_server:
        return None
    problem = parts.problem
    draws = problem.draw(state.round, (computation,), None)
    return problem.server_gradient(on_device(draws, problem.x.device))


def rows_of(state: States, question: Question) -> States:
    """Return the part of a method's state that belongs to the workers that answer."""
    answering = question.answering
    return (
        state
        if answering is None
        else {name: value.index_select(0, answering) for name, value in state.items()}
    )


def put_back(state: States, part: States, question: Question, workers: int) -> States:
    """Return the state of all workers, updated with ``part`` of the workers that answer; it starts
    at 0 (see ``by_row``).
    """
    answering = question.answering
    if answering is None:
        return part
    whole = state or {
        name: value.new_zeros(workers, *value.shape[1:]) for name, value in part.items()
    }
    return whole | {
        name: whole[name].index_copy_(0, answering, value) for name, value in part.items()
    }
