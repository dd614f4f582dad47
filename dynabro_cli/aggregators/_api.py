"""The contract of aggregation rules, and their registry.

A rule is a factory ``(parameters, AggregatorSetting) -> Aggregator``. It never modifies its input; ties go to the lowest
index. State, where a rule has any, is passed in and returned, and what it draws at random is a function of the seed and of
the number of the call (``numbered``).

A worker that sends a NaN or an Inf is treated as Byzantine by every rule: zeros stand for its message before a chain begins
(``_finite.py``), so that rules see finite messages. Where no worker's message is finite the run has diverged: rules then see
nothing but NaN, make an aggregate of it that is not finite either, and raise nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.components import Registry
from dynabro_cli.errors import SpecError

State = dict[str, Tensor]
Aggregate = Callable[[Tensor, State, "int | Tensor"], tuple[Tensor, State]]


@dataclass(frozen=True)
class AggregatorSetting:
    """What a rule knows of its run: m workers, the declared number of Byzantine ones, Algorithm 2's T^0 where set, the seed."""

    workers: int
    byzantine: int
    threshold: float | None = None
    seed: int = 0


class Aggregator(NamedTuple):
    """A rule in its setting.

    Attributes:
        aggregate: Maps messages [m, d], the state, and the number of mini-batches that each message is the mean of (a
            number, or a tensor of one), to the aggregate [d] and the next state.
        kappa: The proved constant of (delta, kappa)-robustness at delta = f/m (Definition 3.2), None where there is none.
        of_sound: The same as ``aggregate`` for messages that are ``sound`` already; None where that is ``aggregate`` itself.
        by_number: Whether the rule tells workers apart by their numbers, as where its state has a row for each. It needs all
            workers to answer in every round.
    """

    aggregate: Aggregate
    kappa: float | None
    of_sound: Aggregate | None = None
    by_number: bool = False


REGISTRY: Registry[Callable[..., Aggregator]] = Registry("aggregator", "dynabro_cli.aggregators")


def declared(_: object, setting: AggregatorSetting) -> int:
    """What f=auto comes to: the declared number of Byzantine workers."""
    return setting.byzantine


def proved(kappa: float, f: int, setting: AggregatorSetting) -> float | None:
    """``kappa``, proved for up to f Byzantine workers; None where more are declared."""
    return kappa if f >= setting.byzantine else None


def stateless(rule: Callable[[Tensor], Tensor], kappa: float | None) -> Aggregator:
    """Wrap a rule that looks at the messages of this call alone."""
    return Aggregator(lambda messages, state, _batches: (rule(messages), state), kappa)


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
            f"{rule!r}: f={f} is not legal with {setting.workers} workers; f must be under half of them, and not negative: "
            f"type a number of Byzantine workers of at most {(setting.workers - 1) // 2}"
        )
    return f
