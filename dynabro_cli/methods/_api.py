"""The contract of training methods, and their registry.

A method is a factory ``(parameters, MethodSetting) -> Method``. In a round the method plans its mini-batches, turns each
worker's prefix means into messages (this is where worker momentum lives), and makes a direction g_t of the aggregates;
the update x_{t+1} = Proj_K(x_t - eta_t (g_t + wd x_t)) is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from dynabro_cli.components import Registry

if TYPE_CHECKING:
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"


@dataclass(frozen=True)
class MethodSetting:
    """Setting of a method.

    Attributes:
        workers: Their number, m.
        budget: Gradient computations of each worker in the run.
        learning_rate: The server's, if it is known already.
        batches: Mini-batches that take all training samples of a worker once (on average, if each has its own); None if there
            are no samples, or their number is unknown.
    """

    workers: int
    budget: int
    learning_rate: float | None = None
    batches: int | None = None


class Told(NamedTuple):
    """Values for a method that are known when the other parts are built.

    Attributes:
        kappa: The aggregation chain's proved constant, None if none is proved.
        learning_rate: The server's; None if it is not known.
        noise: V, once it is measured.
    """

    kappa: float | None = None
    learning_rate: float | None = None
    noise: float | None = None


class Plan(NamedTuple):
    """A round's mini-batches: the MLMC level drawn (None without MLMC), and the prefix lengths, the longest last.

    ``cohort`` are the workers whose messages are aggregated, in ascending order; None for all.
    """

    level: int | None
    prefixes: tuple[int, ...]
    cohort: tuple[int, ...] | None = None


class Computing(Protocol):
    """Questions about a round, for a method that gathers its vectors itself; see ``simulation.gathering``.

    Attributes:
        x: The model x_t, [d].
    """

    x: Tensor

    def gradients(self, computation: int, points: Tensor | None = None) -> Tensor:
        """Return a mini-batch gradient of every worker, [m, d], new: at x_t, at one point [d], or at each worker's point [m,
        d].

        Gradients at one other point must be asked for before any others of the round.
        """
        ...

    def large(self, batches: int) -> Tensor:
        """Return every worker's mean gradient over so many mini-batches, [m, d]: all training samples once, if this is their
        number.
        """
        ...

    def attacked(self, gradients: Tensor, computation: int) -> Tensor:
        """Return the gradients after the round's attack; unchanged if it enters later."""
        ...


class Gathered(NamedTuple):
    """Every worker's vector of a round, [m, d]; the next state; and True if the vectors consist of attacked gradients."""

    vectors: Tensor
    state: State
    attacked: bool


class Method(NamedTuple):
    """A method in its setting.

    Attributes:
        plan: Draws a round's plan.
        first: The first round's plan, if it is not drawn.
        send: Maps the workers' means over one prefix [m, d] and the state to their messages [m, d] and the next state;
            called for each prefix. The state belongs to the method, which may update it in place.
        keep: Puts attacked messages into the state, for attacks that enter there.
        recall: Maps the states before and after a round and the Byzantine mask [m] to the next state: what workers remember of
            rounds in which they are Byzantine. None: as ``send`` and ``keep`` leave it.
        direct: Maps the aggregates of the messages, [d] for each prefix, and the plan to g_t [d] and whether the fail-safe
            filter accepted the correction (a bool tensor; None without one to judge).
        beta: The momentum parameter, None without momentum.
        remembers: True if past gradients influence a worker's messages.
        mlmc: True if the default learning rate is the rate of MLMC methods.
        threshold: MFM's T^0, if the method sets it; inf as long as V is not known.
        wants_noise: True if V has to be measured before the first round.
        told: Maps what the method is told later to the method that goes by it; None if it needs none of it. What a method is
            told may change what ``direct``, ``judge`` and ``gather`` compute, ``threshold`` and ``noise_bound``, and no more.
        noise_bound: The V in use; None if there is none.
        judge: For a method that filters by itself: maps messages [m, d], x_t [d] and the state to the workers that count,
            bool [m], and the next state, which it may update in place. Their mean is the aggregate, 0 without any,
            and the aggregator is ``mean``. A message that is not finite never counts.
        gather: For a method that needs gradients at points other than x_t: computes the workers' vectors in its own way,
            instead of the sums over prefixes. Its plans have one prefix, the round's cost.
        receive: Changes the messages at the server before it aggregates them; None for no change.
        settle: Maps the aggregate and the state to the input of ``direct`` and the next state; None for the aggregate itself.
        cohort: Number of workers in a round whose plan has a cohort; None if no plan has one.
        jmax: The largest MLMC level at which a round has a correction, None without MLMC.
        spread: Maps the messages of level 0 [m, d], the mask of finite messages [m] (None if all are), and their aggregate [d]
            to a number of the round for ``direct_by``; None if ``direct`` decides.
        direct_by: ``direct`` with this number as a third argument, for a method with ``spread``.
        by_row: True if the state consists of tensors with a row for each worker, 0 at first, so that some workers can send
            while the rows of the others are kept.
    """

    plan: Callable[[np.random.Generator], Plan]
    send: Callable[[Tensor, State], tuple[Tensor, State]]
    keep: Callable[[Tensor, State], State]
    direct: Callable[[Sequence[Tensor], Plan], tuple[Tensor, Tensor | None]]
    beta: float | None = None
    remembers: bool = False
    mlmc: bool = False
    threshold: float | None = None
    wants_noise: bool = False
    noise_bound: float | None = None
    first: Plan | None = None
    judge: Callable[[Tensor, Tensor, State], tuple[Tensor, State]] | None = None
    gather: Callable[[Computing, Plan, State], Gathered] | None = None
    receive: Callable[[Tensor, State], Tensor] | None = None
    settle: Callable[[Tensor, State], tuple[Tensor, State]] | None = None
    cohort: int | None = None
    jmax: int | None = None
    by_row: bool = False
    told: Callable[[Told], Method] | None = None
    recall: Callable[[State, State, Tensor], State] | None = None
    spread: Callable[[Tensor, Tensor | None, Tensor], Tensor] | None = None
    direct_by: Callable[[Sequence[Tensor], Plan, Tensor], tuple[Tensor, Tensor | None]] | None = None

    def decide(self, aggregates: Sequence[Tensor], plan: Plan, spread: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return g_t and the filter's verdict, by ``direct_by`` if the round has a spread, and by ``direct`` otherwise."""
        if self.direct_by is None or spread is None:
            return self.direct(aggregates, plan)
        return self.direct_by(aggregates, plan, spread)


NOISE_COMPUTATIONS = 10
"""Gradient computations per worker before the first round for measuring V."""

REGISTRY: Registry[Callable[..., Method]] = Registry("method", "dynabro_cli.methods")


def one_batch(_: np.random.Generator) -> Plan:
    """Plan one mini-batch a round."""
    return Plan(None, (1,))


def send_gradients(gradients: Tensor, state: State) -> tuple[Tensor, State]:
    """Send the gradients as they are; nothing is remembered."""
    return gradients, state


def keep_nothing(_: Tensor, state: State) -> State:
    """Ignore attacked messages: workers without memory have nowhere to keep them."""
    return state


def direct_aggregate(aggregates: Sequence[Tensor], _: Plan) -> tuple[Tensor, None]:
    """Return the aggregate of the round's single message as g_t."""
    return aggregates[0], None
