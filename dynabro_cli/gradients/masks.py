"""Masks of dropout as a function of (seed of the mini-batch, layer, place), drawn for all workers at once on a GPU.

Torch's generators would be one launch a worker and layer, and their state lies outside the memory of a captured graph. Here
the seeds are a tensor, so a graph that is replayed with other seeds draws other masks. A worker's masks do not depend on who
else computes. Words of 32 bits are hashed as in ``attacks._noise``, in int32: a product that overflows keeps its low bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

HALF = 1 << 15
WORDS = (0x21F0AAAD, 0x735A2D97, 0x9E3779B9)


def kept(seeds: Tensor, layer: int, count: int, p: float) -> Tensor:
    """Draw which of ``count`` numbers of each mini-batch are kept, each with probability 1 - p: bool [len(seeds), count].

    Each word of 32 bits serves two numbers, so that the probability is exact to 2^-16.

    Args:
        seeds: int64, one for each mini-batch, on the device.
        layer: A number that tells the layers of a network apart.
        count: The numbers of a mini-batch.
        p: The probability of 0.
    """
    words = torch.arange(-(-count // 2), dtype=torch.int32, device=seeds.device)
    low, high = (seeds ^ _signed(layer)).to(torch.int32), (seeds >> 32).to(torch.int32)
    first, second = _mix(low ^ _signed(WORDS[2]))[:, None], _mix(_mix(high) ^ low)[:, None]
    hashed = _mix(_mix(words + first).bitwise_xor_(second))  # [batches, count / 2]
    least = (min(round(p * 2 * HALF), 2 * HALF - 1) - HALF) << 16  # for each half of a word, uniform on [-2^15, 2^15)
    return torch.stack((hashed << 16 >= least, hashed >= least), 2).flatten(1)[:, :count]


def _signed(word: int) -> int:
    """Return the int32 with the bits of a word."""
    return word - (1 << 32) if word >= 1 << 31 else word


def _mix(word: Tensor) -> Tensor:
    """Apply a bijection of 32-bit words in which every bit depends on every other (C. Wellons' hash-prospector)."""
    word = (word ^ ((word >> 16) & 0xFFFF)).mul_(_signed(WORDS[0]))
    word.bitwise_xor_((word >> 15).bitwise_and_(0x1FFFF)).mul_(_signed(WORDS[1]))
    return word.bitwise_xor_((word >> 15).bitwise_and_(0x1FFFF))
