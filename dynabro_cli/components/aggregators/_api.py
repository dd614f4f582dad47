"""The contract of aggregation rules, and their registry.

A rule is a factory ``(parameters, AggregatorSetting) -> Aggregator``. It never modifies its input;
ties go to the lowest index. State, if a rule has any, is passed in and returned. Random draws
depend only on the seed and the call's number (``numbered``).

Every rule treats a worker that sends a NaN or an Inf as Byzantine: zeros replace its message before
a chain begins (``vectors.finite``), so rules see finite messages. If no worker's message is finite,
the run has diverged. Rules then see only NaN, return an aggregate that is not finite, and raise
nothing.

A rule that needs trusted data finds the server's gradient of the round in its state, under
``SERVER``, and does not return it. This is a mini-batch gradient at x_t on the samples that the
server holds. For a prefix of 2^j mini-batches (a level of ``dynabro``) it is the mean over the
server's first 2^j mini-batches, so that it has the noise of an honest worker. For methods that
gather their vectors it is one mini-batch. The gradient is never attacked. It is not part of the
budget, which counts the workers' computations.

Finite messages have a finite aggregate, however large they are. So a rule takes means, lengths and
inner products from ``dynabro_cli.core.vectors``, which is safe from overflow and underflow. A rule
itself neither sums nor squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import Registry
from dynabro_cli.core.vectors.gram import gram
from dynabro_cli.core.vectors.means import weighted

if TYPE_CHECKING:
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"
SERVER = "server"
"""Name of the server's gradient [d] in the state that a rule gets."""
Aggregate: TypeAlias = "Callable[[Tensor, State, int | Tensor], tuple[Tensor, State]]"


@dataclass(frozen=True)
class AggregatorSetting:
    """Setting of a rule: m workers, the declared number f of Byzantine workers, Algorithm 2's T^0
    if set, and the seed.
    """

    workers: int
    byzantine: int
    threshold: float | None = None
    seed: int = 0


class Aggregator(NamedTuple):
    """A rule in its setting.

    Attributes:
        aggregate: Maps messages [m, d], the state and N to the aggregate [d] and the next state.
            Each message is the mean of N mini-batches; N is a number or a tensor with one element.
        kappa: The proved constant of (delta, kappa)-robustness at delta = f/m (Definition 3.2);
            None if no constant is proved.
        of_sound: ``aggregate`` for messages that are already ``sound``; ``aggregate`` of such a
            rule takes any messages. None if ``aggregate`` needs sound messages.
        by_number: True if the rule identifies workers by their numbers, for example with a row of
            state for each worker. All workers must then answer in every round.
        weigh: Maps the messages' Gram matrix [m, m] (``vectors.gram``) to weights [m], whose
            weighted mean of the messages is the aggregate. None if the rule does not have this
            form. After pre-aggregators that also mix by a Gram matrix, the whole chain computes
            only one Gram matrix and one mean of the messages.
        needs_server: True if the rule needs the server's gradient.
        at_threshold: Maps Algorithm 2's T^0 to the rule with this threshold. None if the rule has
            no such threshold, or sets its own.
        coordinatewise: True if every coordinate of the aggregate depends only on the same
            coordinate of the messages, and the rule has no state. Parts of the coordinates may then
            be aggregated in different places.
    """

    aggregate: Aggregate
    kappa: float | None
    of_sound: Aggregate | None = None
    by_number: bool = False
    weigh: Callable[[Tensor], Tensor] | None = None
    needs_server: bool = False
    at_threshold: Callable[[float], Aggregator] | None = None
    coordinatewise: bool = False


REGISTRY: Registry[Callable[..., Aggregator]] = Registry("aggregator", __package__)


def declared(_: object, setting: AggregatorSetting) -> int:
    """Resolve f=auto: the declared number of Byzantine workers."""
    return setting.byzantine


def proved(kappa: float, f: int, setting: AggregatorSetting) -> float | None:
    """Return ``kappa``, proved for up to f Byzantine workers; None if more are declared."""
    return kappa if f >= setting.byzantine else None


def stateless(rule: Callable[[Tensor], Tensor], kappa: float | None) -> Aggregator:
    """Wrap a rule that uses the messages of this call only."""
    return Aggregator(lambda messages, state, _batches: (rule(messages), state), kappa)


def by_coordinate(rule: Callable[[Tensor], Tensor], kappa: float | None) -> Aggregator:
    """Wrap a stateless rule that is ``coordinatewise``."""
    return stateless(rule, kappa)._replace(coordinatewise=True)


def weighing(weigh: Callable[[Tensor], Tensor], kappa: float | None) -> Aggregator:
    """Wrap a rule that maps the messages' Gram matrix [m, m] to weights [m]."""
    return stateless(lambda messages: weighted(messages, weigh(gram(messages))), kappa)._replace(
        weigh=weigh
    )


def numbered(rule: Callable[[Tensor, Tensor], Tensor], kappa: float | None) -> Aggregator:
    """Wrap a rule that draws random numbers: besides the messages, it takes the call's number 0, 1,
    ... as a tensor.
    """

    def aggregate(messages: Tensor, state: State, _: int | Tensor) -> tuple[Tensor, State]:
        call = (
            state["calls"]
            if "calls" in state
            else torch.zeros((), dtype=torch.int64, device=messages.device)
        )
        return rule(messages, call), {"calls": call + 1}

    return Aggregator(aggregate, kappa)


def tolerated(rule: str, f: int | None, setting: AggregatorSetting) -> int:
    """Return f, by default the run's declared number; raise SpecError unless 0 <= 2f < m."""
    f = setting.byzantine if f is None else f
    if f < 0 or 2 * f >= setting.workers:
        raise SpecError(
            f"{rule!r}: f={f} is not legal with {setting.workers} workers; f must be under "
            "half of them, and not negative. "
            f"Try: a number of Byzantine workers of at most {(setting.workers - 1) // 2}"
        )
    return f
