"""What memory components say they take beyond the usual: ``@REGISTRY.register(..., footprint=of_pairs)``."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Footprint(NamedTuple):
    """Memory that a component takes beyond the usual few copies of the messages [m, d].

    Attributes:
        copies: More copies of the messages that are in memory at once; of a method, those that it keeps from round to round.
        bytes: What does not grow with d.
    """

    copies: float = 0
    bytes: float = 0

    def beside(self, other: Footprint) -> Footprint:
        """The footprint of two components whose memory is never taken at one time."""
        return Footprint(max(self.copies, other.copies), max(self.bytes, other.bytes))


def copies(count: float) -> Any:
    """The footprint of a component that takes so many copies of the messages more."""
    return lambda _parameters, _setting: Footprint(count)


def of_pairs(_: Any, setting: Any) -> Footprint:
    """The footprint of a rule that compares all pairs of the setting's m messages."""
    return Footprint(1, tables(setting.workers)).beside(of_order(_, setting))


def of_order(_: Any, setting: Any) -> Footprint:
    """The footprint of a rule that sorts the setting's m messages by a network: its comparators are tuples of two numbers."""
    depth = math.log2(max(2, setting.workers))
    return Footprint(1, 140 * setting.workers / 4 * (depth * depth - depth + 4))


def tables(m: int, count: float = 11) -> float:
    """The bytes of some tables [m, m] in double precision: distances, their order, and what is made of them."""
    return count * 8 * m * m
