"""The contract of pre-aggregators, and their registry.

A pre-aggregator is a factory ``(parameters, AggregatorSetting) -> PreAggregator``. It never modifies its input.
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
    """

    mix: Callable[[Tensor], Tensor]
    workers: int
    kappa: Callable[[float], float | None]


REGISTRY: Registry[Callable[..., PreAggregator]] = Registry("pre-aggregator", "dynabro_cli.pre_aggregators")
