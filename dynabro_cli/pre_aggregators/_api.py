"""The contract of pre-aggregators, and their registry.

A pre-aggregator is a factory ``(parameters, AggregatorSetting) -> PreAggregator``. It never modifies its input.
It draws no random numbers but as a function of the call's number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from dynabro_cli.components import Registry


class PreAggregator(NamedTuple):
    """A pre-aggregator in its setting.

    Attributes:
        mix: Maps messages [m, d] to messages [m', d].
        workers: The number m' of messages that come out.
        kappa: Maps the rule's kappa to that of pre-aggregator and rule together; None where nothing is proved.
        numbered: Whether ``mix`` takes the number of the call as well, a tensor of one whole number that counts from 0:
            what is to be drawn anew in every call is a function of it.
    """

    mix: Callable[..., Tensor]
    workers: int
    kappa: Callable[[float], float | None]
    numbered: bool = False


REGISTRY: Registry[Callable[..., PreAggregator]] = Registry("pre-aggregator", "dynabro_cli.pre_aggregators")
