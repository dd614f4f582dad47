"""Memory of components beyond the usual: ``@REGISTRY.register(..., footprint=of_pairs)``."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Footprint(NamedTuple):
    """Memory that a component takes beyond the usual few copies of the messages [m, d].

    Attributes:
        copies: Additional copies of the messages in memory at once; for a method, the copies that it keeps from round to round.
        bytes: Memory that does not grow with d.
    """

    copies: float = 0
    bytes: float = 0

    def beside(self, other: Footprint) -> Footprint:
        """Return the footprint of two components whose memory is never used at the same time."""
        return Footprint(max(self.copies, other.copies), max(self.bytes, other.bytes))


def copies(count: float) -> Any:
    """Return the footprint of a component with a number of additional copies of the messages."""
    return lambda _parameters, _setting: Footprint(count)


def of_pairs(_: Any, setting: Any) -> Footprint:
    """Return the footprint of a rule that compares all pairs of the setting's m messages."""
    return Footprint(1, tables(setting.workers)).beside(of_order(_, setting))


def of_order(_: Any, setting: Any) -> Footprint:
    """Return the footprint of a rule that sorts m messages by a network, whose comparators are tuples of two numbers."""
    depth = math.log2(max(2, setting.workers))
    return Footprint(1, 140 * setting.workers / 4 * (depth * depth - depth + 4))


def tables(m: int, count: float = 11) -> float:
    """Return the bytes of some tables [m, m] in double precision: distances, their order, and derived tables."""
    return count * 8 * m * m
