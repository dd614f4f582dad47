"""The contract of training methods, and their registry.

A method is a factory ``(parameters, MethodSetting) -> Method``. There are three kinds. In a
``MeansMethod`` workers send means of their gradients at x_t over mini-batches, possibly with
momentum; the method makes the direction g_t from the aggregates. A ``JudgingMethod`` judges at the
server which workers count; g_t is the mean of their gradients. A ``GatheringMethod`` computes each
worker's vector in its own way, for example from gradients at other points; g_t comes from the
aggregate of these vectors. The update x_{t+1} = Proj_K(x_t - eta_t (g_t + wd x_t)) is the same for
all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from dynabro_cli.core.lazy import np
from dynabro_cli.core.registration import Registry

if TYPE_CHECKING:
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"


@dataclass(frozen=True)
class MethodSetting:
    """Setting of a method.

    Attributes:
        workers: The number m of workers.
        budget: Gradient computations of each worker in the run.
        learning_rate: The server's learning rate, if it is already known.
        batches: Mini-batches that use all training samples of a worker once (on average, if workers
            have different samples); None if there are no samples, or their number is unknown.
    """

    workers: int
    budget: int
    learning_rate: float | None = None
    batches: int | None = None


class Measured(NamedTuple):
    """Values for a method that are known when the other parts are built.

    Attributes:
        kappa: The aggregation chain's proved constant; None if no constant is proved.
        learning_rate: The server's learning rate; None if it is not known.
        noise: V, once measured.
    """

    kappa: float | None = None
    learning_rate: float | None = None
    noise: float | None = None


class Plan(NamedTuple):
    """Mini-batches of a round: the drawn MLMC level (None without MLMC), and the lengths of its
    prefixes, the longest last.

    ``cohort`` are the workers whose messages are aggregated, in ascending order; None for all.
    """

    level: int | None
    prefixes: tuple[int, ...]
    cohort: tuple[int, ...] | None = None


class Computing(Protocol):
    """Questions that a method can ask about a round when it gathers its vectors itself; see
    ``simulation.round.gathering``.

    Attributes:
        x: The model x_t, [d].
    """

    x: Tensor

    def gradients(self, computation: int, points: Tensor | None = None) -> Tensor:
        """Return a new mini-batch gradient of every worker [m, d]: at x_t, at one point [d], or at
        each worker's point [m, d].

        Gradients at one other point must be requested before all other gradients of the round.
        """
        ...

    def large(self, batches: int) -> Tensor:
        """Return every worker's mean gradient over ``batches`` mini-batches, [m, d].

        If these mini-batches make up all training samples, each sample is used once.
        """
        ...

    def attacked(self, gradients: Tensor, computation: int) -> Tensor:
        """Return the gradients after the round's attack; unchanged if the attack enters later."""
        ...


class Gathered(NamedTuple):
    """Every worker's vector of a round, [m, d]; the next state; and True if the vectors consist of
    attacked gradients.

    ``gradients`` are the workers' own gradients at x_t, [m, d], for an attack that makes messages
    from gradients; None if the vectors stand for the gradients.
    """

    vectors: Tensor
    state: State
    attacked: bool
    gradients: Tensor | None = None


def single_batch(_: np.random.Generator) -> Plan:
    """Plan one mini-batch a round."""
    return Plan(None, (1,))


def send_gradients(gradients: Tensor, state: State) -> tuple[Tensor, State]:
    """Send the gradients unchanged; remember nothing."""
    return gradients, state


def keep_nothing(_: Tensor, state: State) -> State:
    """Ignore attacked messages: workers without memory cannot keep them."""
    return state


def direct_aggregate(aggregates: Sequence[Tensor], _: Plan) -> tuple[Tensor, None]:
    """Return the aggregate of the round's single message as g_t."""
    return aggregates[0], None


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method in its setting: the facts that the three kinds below have in common.

    Attributes:
        plan: Draws a round's plan.
        first: The first round's plan; None if it is drawn.
        settle: Maps the last aggregate [d] and the server's own state to the vector that replaces
            the aggregate, and the next state. None if the aggregate is used unchanged.
        with_measured: Maps what is known of the other parts to the method configured with it; None
            if the method needs nothing from them. It may change only functions of the server,
            ``threshold`` and ``noise_bound``.
        wants_noise: True if V has to be measured before the first round.
        noise_bound: The V in use; None for a method without V.
        threshold: MFM's T^0, if the method sets it; inf until V is known.
        beta: The parameter of worker momentum; None without momentum.
        jmax: The largest MLMC level at which a round has a correction; None without MLMC.
    """

    plan: Callable[[np.random.Generator], Plan] = single_batch
    first: Plan | None = None
    settle: Callable[[Tensor, State], tuple[Tensor, State]] | None = None
    with_measured: Callable[[Measured], Method] | None = None
    wants_noise: bool = False
    noise_bound: float | None = None
    threshold: float | None = None
    beta: float | None = None
    jmax: int | None = None

    def plan_of(self, round_: int, generator: np.random.Generator) -> Plan:
        """Return the plan of a round, counted from 0."""
        return self.plan(generator) if round_ or self.first is None else self.first


@dataclass(frozen=True, kw_only=True)
class MeansMethod(Method):
    """A method whose workers send means of their gradients at x_t. The default values are plain
    SGD.

    Attributes:
        send: Maps the workers' means over one prefix [m, d] and the state to their messages [m, d]
            and the next state; called for each prefix. The state belongs to the method, which may
            update it in place.
        keep: Puts attacked messages into the state, for attacks that enter there.
        recall: Maps the states before and after a round and the Byzantine mask [m] to the next
            state: what workers remember of rounds in which they are Byzantine. None if they keep
            what ``send`` and ``keep`` leave.
        remembers: True if past gradients influence a worker's messages.
        first_gain: The factor of a gradient in the first round's momentum, if it is not 1 - beta.
        delayed: True if the server aggregates the last messages of all workers, not only of workers
            that answer in the round.
        by_row: True if the state consists of tensors with a row for each worker, 0 at first. Some
            workers can then send while the rows of the others are kept.
        spread: Maps the messages of the first prefix [m, d], the mask of finite messages [m] (None
            if all are), and their aggregate [d] to a number of the round for ``direct``; None if
            ``direct`` needs none.
        direct: Maps the messages' aggregates ([d] for each prefix), the plan, and the number from
            ``spread`` (if not None) to g_t [d] and the fail-safe filter's verdict: a bool tensor,
            True if it accepted the correction; None without a correction to judge.
    """

    send: Callable[[Tensor, State], tuple[Tensor, State]] = send_gradients
    keep: Callable[[Tensor, State], State] = keep_nothing
    recall: Callable[[State, State, Tensor], State] | None = None
    remembers: bool = False
    first_gain: float | None = None
    delayed: bool = False
    by_row: bool = False
    spread: Callable[[Tensor, Tensor | None, Tensor], Tensor] | None = None
    direct: Callable[..., tuple[Tensor, Tensor | None]] = direct_aggregate

    def direction(
        self, aggregates: Sequence[Tensor], plan: Plan, spread: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return g_t and the filter's verdict."""
        return (
            self.direct(aggregates, plan)
            if spread is None
            else self.direct(aggregates, plan, spread)
        )


@dataclass(frozen=True, kw_only=True)
class JudgingMethod(Method):
    """A method that filters workers itself; the aggregator is ``mean``.

    Attributes:
        judge: Maps the gradients [m, d], x_t [d] and the state to the workers that count, bool [m],
            and the next state. It may update the state in place. g_t is the mean of the gradients
            that count, and 0 if none counts. A gradient that is not finite never counts.
    """

    judge: Callable[[Tensor, Tensor, State], tuple[Tensor, State]]


@dataclass(frozen=True, kw_only=True)
class GatheringMethod(Method):
    """A method that computes the workers' vectors in its own way, for example from gradients at
    points other than x_t.

    Its plans have one prefix: the round's cost.

    Attributes:
        gather: Computes every worker's vector of a round.
        receive: Changes the vectors [m, d] at the server before it aggregates them; None for no
            change.
        keep: Puts attacked vectors into the state, for attacks that enter there.
        remembers: True if a worker's memory influences its vectors. Every worker must then answer
            in every round.
        cohort: Number of workers in a round whose plan has a cohort; None if no plan has one.
        asks: False if ``gather`` never asks for attacked gradients, so that an attack acts on its
            vectors only.
    """

    gather: Callable[[Computing, Plan, State], Gathered]
    receive: Callable[[Tensor, State], Tensor] | None = None
    keep: Callable[[Tensor, State], State] = keep_nothing
    remembers: bool = False
    cohort: int | None = None
    asks: bool = True


def senders(method: Method) -> MeansMethod:
    """Return the workers' side of a method: if it does not define how its workers send, they send
    what they computed.
    """
    if isinstance(method, GatheringMethod):
        return MeansMethod(keep=method.keep, remembers=method.remembers)
    return method if isinstance(method, MeansMethod) else MeansMethod()


def is_single_tick(method: Method) -> bool:
    """Return True if every round is one gradient computation, so that no Byzantine set changes
    within a round.
    """
    return method.plan is single_batch and method.first is None


def forgets(method: Method) -> bool:
    """Return True if workers send what they computed and keep nothing: an attack on gradients is
    one on messages or states.

    With a clock of computations this holds only for rounds of one computation
    (``is_single_tick``), and for vectors that are never attacked on the way.
    """
    workers = senders(method)
    keeps = workers.remembers or workers.keep is not keep_nothing or workers.recall is not None
    return (
        workers.send is send_gradients
        and not keeps
        and not (isinstance(method, GatheringMethod) and method.asks)
    )


NOISE_COMPUTATIONS = 10
"""Gradient computations per worker, before the first round, to measure V."""

REGISTRY: Registry[Callable[..., Method]] = Registry("method", __package__)
