"""The contract of pre-aggregators, and their registry.

A pre-aggregator is a factory ``(parameters, AggregatorSetting) -> PreAggregator``. It never
modifies its input. Its random numbers depend on the call's number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from dynabro_cli.core.registration import Registry

if TYPE_CHECKING:
    from torch import Tensor


class PreAggregator(NamedTuple):
    """A pre-aggregator in its setting.

    Attributes:
        mix: Maps messages [m, d] to messages [m', d].
        workers: The number m' of messages that come out.
        kappa: Maps the rule's kappa to the kappa of pre-aggregator and rule together; None if
            nothing is proved.
        numbered: True if ``mix`` also takes the call's number, a tensor of one integer from 0, on
            which its draws depend.
        weigh: Maps the messages' Gram matrix [m, m] to weights [m', m], without a row of zeros.
            Each row's weighted mean of the messages is a message that comes out. None if ``mix``
            does not have this form.
        coordinatewise: True if every coordinate of the messages that come out depends only on the
            same coordinate of the messages that go in.
    """

    mix: Callable[..., Tensor]
    workers: int
    kappa: Callable[[float], float | None]
    numbered: bool = False
    weigh: Callable[[Tensor], Tensor] | None = None
    coordinatewise: bool = False


REGISTRY: Registry[Callable[..., PreAggregator]] = Registry("pre-aggregator", __package__)
