"""Noise as a pure function of a key, a tick, the worker and the coordinate, in tensor operations
that compile.

The key comes from the run's stream ``attack``. The tick is in the attack's state, on the device;
NumPy's generators would have to wait for it. Words of 32 bits are kept in int64 and multiplied by
less than 2^31, so that no product overflows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.streams import Streams

if TYPE_CHECKING:
    from torch import Tensor

WORD = 0xFFFFFFFF
GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: sets the two words of a row apart


def noise_key(seed: int) -> int:
    """Return the key of a run's noise, 63 bits; called once, because it cannot be compiled."""
    return Streams(seed).integer("attack", 0)


def uniform_noise(key: int, tick: Tensor, like: Tensor) -> Tensor:
    """Return independent uniform numbers on (0, 1), in double precision, with the shape [m, d] and
    the device of ``like``.

    A row's numbers depend on its place, not on the number of rows. Each is a 32-bit hash of (key,
    tick, worker, coordinate).
    """
    workers = torch.arange(like.shape[0], device=like.device)
    coordinates = torch.arange(like.shape[1], device=like.device)
    tick = tick.to(like.device)
    first = _mix(_mix((_mix(tick & WORD) + (key & WORD)) & WORD) ^ workers)  # [m]
    second = _mix(_mix((_mix((tick ^ GOLDEN) & WORD) + (key >> 32)) & WORD) ^ workers)  # [m]
    # [m, d]
    hashes = _mix(
        _mix((coordinates + first[:, None]).bitwise_and_(WORD)).bitwise_xor_(second[:, None])
    )
    return hashes.to(torch.float64).add_(0.5).div_(2**32)


def normal_noise(key: int, tick: Tensor, like: Tensor) -> Tensor:
    """Return standard normal numbers with the shape, device and type of ``like``; all are within
    6.2 standard deviations.
    """
    return (
        uniform_noise(key, tick, like).mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2)).to(like.dtype)
    )


def _mix(word: Tensor) -> Tensor:
    """Apply a bijection of 32-bit words in which every bit depends on every other (C. Wellons'
    hash-prospector).

    ``word`` is overwritten: it is large, and nothing else uses it.
    """
    word.bitwise_xor_(word >> 16).mul_(0x21F0AAAD).bitwise_and_(WORD)
    word.bitwise_xor_(word >> 15).mul_(0x735A2D97).bitwise_and_(WORD)
    return word.bitwise_xor_(word >> 15)
