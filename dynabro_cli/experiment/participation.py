"""Workers that answer in a round, if not all of them do."""

from __future__ import annotations

import math
from typing import Any

from dynabro_cli.deferred import np
from dynabro_cli.streams import Streams


def answering_count(participation: float, workers: int) -> int:
    """Return the number of workers that answer in a round, n = ceil(participation m).

    Example:
        >>> answering_count(0.28, 25), answering_count(0.5, 17)
        (7, 9)
    """
    return max(1, math.ceil(participation * workers - 1e-9))  # 0.28 x 25 is 7, despite binary fractions


def answering(seed: int, participation: float, workers: int, round_: int) -> np.ndarray[Any, Any]:
    """Return the numbers of the workers that answer in a round, from 0, in ascending order: n of them, drawn uniformly.

    They are a function of the seed and the round, in a random stream of its own: identities and mini-batches do not change.
    """
    count = answering_count(participation, workers)
    if count == workers:
        return np.arange(workers)
    return np.sort(Streams(seed).generator("participation", round_).choice(workers, count, replace=False))
