"""Random numbers as a function of seed and call, in integer arithmetic that works inside a compiled
function.

A counter-based stream as in ``streams.py``, but drawn on the messages' device, so that no round
waits for a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.streams import Streams

if TYPE_CHECKING:
    from torch import Tensor

BITS = (1 << 32) - 1


class Draws:
    """Random numbers of a run's aggregation; two runs with the same seed draw the same numbers in
    their n-th calls.
    """

    def __init__(self, seed: int) -> None:
        self._key = Streams(seed).integer("aggregation", 0)

    def numbers(self, call: int | Tensor, count: int, device: torch.device) -> Tensor:
        """Return ``count`` different integers in [0, 2^32), for call = 0, 1, ..."""
        counter = torch.as_tensor(call, dtype=torch.int64, device=device) & BITS
        base = scrambled(scrambled(counter ^ (self._key & BITS)) ^ (self._key >> 32))
        return scrambled(base ^ torch.arange(count, device=device))

    def permutation(self, call: int | Tensor, m: int, device: torch.device) -> Tensor:
        """Return a permutation of 0, ..., m - 1."""
        return self.numbers(call, m, device).sort().indices

    def coordinates(self, call: int | Tensor, count: int, d: int, device: torch.device) -> Tensor:
        """Return ``count`` of d coordinates in ascending order, one from each of ``count`` equally
        long stretches.

        All coordinates are equally likely if ``count`` divides d, and nearly so otherwise.
        """
        ends = torch.arange(count + 1, device=device) * d // count
        starts, lengths = ends[:-1], ends[1:] - ends[:-1]
        return starts + (self.numbers(call, count, device) * lengths >> 32)


def scrambled(x: Tensor) -> Tensor:
    """Apply a bijection of [0, 2^32) that leaves no pattern (Wellons' hash-prospector); no product
    exceeds 63 bits.
    """
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & BITS
    x = ((x ^ (x >> 15)) * 0x735A2D97) & BITS
    return x ^ (x >> 15)
