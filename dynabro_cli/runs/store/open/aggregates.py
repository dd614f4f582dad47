"""Aggregate functions that SQLite lacks: ``median``, ``stddev`` and ``quantile``, for queries."""

from __future__ import annotations

import math
import sqlite3
import statistics
from collections.abc import Callable


def add_aggregates(connection: sqlite3.Connection) -> None:
    """Add the functions to a connection. NULL does not count; of no number they are NULL.

    ``stddev(x)`` divides by n - 1, as PostgreSQL's does. ``quantile(x, share)`` interpolates
    between two numbers, as ``percentile_cont`` of PostgreSQL does; ``median(x)`` is
    ``quantile(x, 0.5)``.
    """
    connection.create_aggregate("median", 1, _aggregate(lambda numbers, _: _at(numbers, 0.5)))
    connection.create_aggregate("quantile", 2, _aggregate(_at))
    connection.create_aggregate(
        "stddev",
        1,
        _aggregate(lambda numbers, _: statistics.stdev(numbers) if len(numbers) > 1 else None),
    )


def _at(numbers: list[float], share: float) -> float | None:
    """Return the quantile of some numbers; None if the share is not between 0 and 1."""
    if not 0 <= share <= 1:
        return None
    ordered, place = sorted(numbers), share * (len(numbers) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def _aggregate(of: Callable[[list[float], float], float | None]) -> type:
    """Return a class as SQLite has it for an aggregate function of numbers and a share."""

    class Aggregate:
        def __init__(self) -> None:
            self._numbers: list[float] = []
            self._share = 0.5

        def step(self, number: object, share: object = 0.5) -> None:
            if isinstance(number, (int, float)):
                self._numbers.append(float(number))
                self._share = share if isinstance(share, (int, float)) else math.nan

        def finalize(self) -> float | None:
            return of(self._numbers, self._share) if self._numbers else None

    return Aggregate
