"""The contract of pre-aggregators, and their registry.

A pre-aggregator is a factory ``(parameters, AggregatorSetting) -> PreAggregator``. It never modifies its input.
Its random numbers are a function of the call's number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from dynabro_cli.components import Registry

if TYPE_CHECKING:
    from torch import Tensor


class PreAggregator(NamedTuple):
    """A pre-aggregator in its setting.

    Attributes:
        mix: Maps messages [m, d] to messages [m', d].
        workers: The number m' of messages that come out.
        kappa: Maps the rule's kappa to the kappa of pre-aggregator and rule together; None if nothing is proved.
        numbered: True if ``mix`` also takes the number of the call, a tensor of one whole number from 0: draws in every call
            are a function of it.
        weigh: Maps the messages' Gram matrix [m, m] to weights [m', m], none of whose rows is all 0: each row's weighted mean
            of the messages is one that comes out. None if there is more to it.
    """

    mix: Callable[..., Tensor]
    workers: int
    kappa: Callable[[float], float | None]
    numbered: bool = False
    weigh: Callable[[Tensor], Tensor] | None = None


REGISTRY: Registry[Callable[..., PreAggregator]] = Registry("pre-aggregator", "dynabro_cli.pre_aggregators")
