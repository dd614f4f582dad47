"""The contract of aggregation rules, and their registry.

A rule is a factory ``(parameters, AggregatorSetting) -> Aggregator``. It never modifies its input; ties go to the lowest
index. State, if a rule has any, is passed in and returned. Random draws are a function of the seed and of the number of the
call (``numbered``).

A worker that sends a NaN or an Inf is treated as Byzantine by every rule: zeros stand for its message before a chain begins
(``vectors.finite``), so that rules see finite messages. If no worker's message is finite, the run has diverged: rules then see
only NaN, return an aggregate that is not finite either, and raise nothing.

Finite messages have a finite aggregate, however large they are. So a rule takes means, lengths and inner products from
``dynabro_cli.vectors``, which is safe from overflow and underflow. It adds up and squares nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from dynabro_cli.components import Registry
from dynabro_cli.errors import SpecError
from dynabro_cli.lazy import torch
from dynabro_cli.vectors.gram import gram
from dynabro_cli.vectors.means import weighted

if TYPE_CHECKING:
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"
Aggregate: TypeAlias = "Callable[[Tensor, State, int | Tensor], tuple[Tensor, State]]"


@dataclass(frozen=True)
class AggregatorSetting:
    """Setting of a rule: m workers, the declared number of Byzantine ones, Algorithm 2's T^0 if set, the seed."""

    workers: int
    byzantine: int
    threshold: float | None = None
    seed: int = 0


class Aggregator(NamedTuple):
    """A rule in its setting.

    Attributes:
        aggregate: Maps messages [m, d], the state, and the number of mini-batches that each message is the mean of (a
            number, or a tensor of one), to the aggregate [d] and the next state.
        kappa: The proved constant of (delta, kappa)-robustness at delta = f/m (Definition 3.2); None if there is none.
        of_sound: The same as ``aggregate`` for messages that are ``sound`` already; None if it is ``aggregate`` itself.
        by_number: True if the rule identifies workers by their numbers, for example with a row of state for each. It needs all
            workers to answer in every round.
        weigh: Maps the messages' Gram matrix [m, m] (``vectors.gram``) to weights [m], whose weighted mean of the messages is
            the aggregate. None if there is more to the rule. Behind pre-aggregators that mix by such a matrix, too, nothing
            is computed of the messages but one Gram matrix and one mean.
        at_threshold: Maps Algorithm 2's T^0 to the rule that goes by it. None if the rule has no such threshold, or its own.
    """

    aggregate: Aggregate
    kappa: float | None
    of_sound: Aggregate | None = None
    by_number: bool = False
    weigh: Callable[[Tensor], Tensor] | None = None
    at_threshold: Callable[[float], Aggregator] | None = None


REGISTRY: Registry[Callable[..., Aggregator]] = Registry("aggregator", "dynabro_cli.aggregators")


def declared(_: object, setting: AggregatorSetting) -> int:
    """Resolve f=auto: the declared number of Byzantine workers."""
    return setting.byzantine


def proved(kappa: float, f: int, setting: AggregatorSetting) -> float | None:
    """Return ``kappa``, proved for up to f Byzantine workers; None if more are declared."""
    return kappa if f >= setting.byzantine else None


def stateless(rule: Callable[[Tensor], Tensor], kappa: float | None) -> Aggregator:
    """Wrap a rule that uses the messages of this call only."""
    return Aggregator(lambda messages, state, _batches: (rule(messages), state), kappa)


def weighing(weigh: Callable[[Tensor], Tensor], kappa: float | None) -> Aggregator:
    """Wrap a rule that maps the messages' Gram matrix [m, m] to weights [m]."""
    return stateless(lambda messages: weighted(messages, weigh(gram(messages))), kappa)._replace(weigh=weigh)


def numbered(rule: Callable[[Tensor, Tensor], Tensor], kappa: float | None) -> Aggregator:
    """Wrap a rule that draws random numbers: it takes the number of the call, 0, 1, ..., a tensor, beside the messages."""

    def aggregate(messages: Tensor, state: State, _: int | Tensor) -> tuple[Tensor, State]:
        call = state["calls"] if "calls" in state else torch.zeros((), dtype=torch.int64, device=messages.device)
        return rule(messages, call), {"calls": call + 1}

    return Aggregator(aggregate, kappa)


def tolerated(rule: str, f: int | None, setting: AggregatorSetting) -> int:
    """Return f, by default the run's declared number; raise SpecError unless 0 <= 2f < m."""
    f = setting.byzantine if f is None else f
    if f < 0 or 2 * f >= setting.workers:
        raise SpecError(
            f"{rule!r}: f={f} is not legal with {setting.workers} workers; f must be under half of them, and not negative. "
            f"Try: a number of Byzantine workers of at most {(setting.workers - 1) // 2}"
        )
    return f
