"""The contract of aggregation rules, and their registry.

A rule is a factory ``(parameters, AggregatorSetting) -> Aggregator``. It never modifies its input and draws no random
numbers; ties go to the lowest index. State, where a rule has any, is passed in and returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from dynabro_cli.components import Registry
from dynabro_cli.errors import SpecError

State = dict[str, Tensor]


@dataclass(frozen=True)
class AggregatorSetting:
    """What a rule knows of its run: m workers, the declared number of Byzantine ones, and Algorithm 2's T^0 where set."""

    workers: int
    byzantine: int
    threshold: float | None = None


class Aggregator(NamedTuple):
    """A rule in its setting.

    Attributes:
        aggregate: Maps messages [m, d], the state, and the number of mini-batches that each message is the mean of (a
            number, or a tensor of one), to the aggregate [d] and the next state.
        kappa: The proved constant of (delta, kappa)-robustness at delta = f/m (Definition 3.2), None where there is none.
        by_number: Whether the rule tells workers apart by their numbers, as where its state has a row for each. It needs all
            workers to answer in every round.
    """

    aggregate: Callable[[Tensor, State, int | Tensor], tuple[Tensor, State]]
    kappa: float | None
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


def tolerated(rule: str, f: int | None, setting: AggregatorSetting) -> int:
    """Return f, by default the run's declared number; raise SpecError unless 0 <= 2f < m."""
    f = setting.byzantine if f is None else f
    if f < 0 or 2 * f >= setting.workers:
        raise SpecError(
            f"{rule!r}: f={f} is not legal with {setting.workers} workers; f must be under half of them, and not negative: "
            f"type a number of Byzantine workers of at most {(setting.workers - 1) // 2}"
        )
    return f
