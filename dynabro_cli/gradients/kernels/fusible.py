"""Batch normalisation, the ReLU before it, and dropout, as functions without state; other kernels
replace them.

Without kernels, each operation reads and writes all activations.

Masks of dropout are a function of (seed of the mini-batch, layer, place), drawn for all workers at
once on a GPU. Torch's generators would need one launch per worker and layer, and their state lies
outside the memory of a captured graph. Here the seeds are a tensor, so a graph that is replayed
with other seeds draws other masks. A worker's masks do not depend on the other workers in the pass.
Words of 32 bits are hashed as in ``attacks._noise``, in int32: a product that overflows keeps its
low bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

HALF = 1 << 15
WORDS = (0x21F0AAAD, 0x735A2D97, 0x9E3779B9)

Kept = tuple[Tensor | None, ...]
"""Tensors that batch norm keeps for its backward pass."""


def accurate(x: Tensor) -> Tensor:
    """Return ``x`` in single precision; unchanged if it is in double precision."""
    return x.float() if x.dtype == torch.bfloat16 else x


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Kept]:
    """Normalise every mini-batch by its own statistics (Ioffe & Szegedy, 2015), after a ReLU if
    ``relu``.

    Args:
        x: The values of G mini-batches, [G, P, C], with P values per channel.
        weight: [C], or None for 1.
        bias: [C], or None for 0.
        eps: Added to the variance.
        relu: True to apply ReLU first.

    Returns:
        The output in the type of ``x``; mean and variance, [G, 1, C]; and for the backward pass
        ``normal`` [G, P, C], ``inverse`` [G, 1, C] and, with ReLU, the mask of places without a
        gradient.
    """
    values = accurate(x)
    closed = values <= 0 if relu else None
    values = torch.relu(values) if relu else values
    variance, mean = torch.var_mean(values, 1, keepdim=True, correction=0)
    inverse = (variance + eps).rsqrt()
    normal = (values - mean) * inverse
    out = normal if weight is None else torch.addcmul(cast(Tensor, bias), normal, weight)
    return out.to(x.dtype), mean, variance, (normal, inverse, closed)


def normalise_backward(
    gy: Tensor, kept: Kept, weight: Tensor | None, relu: bool, workers: int, wanted: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the gradients with respect to input ([G, P, C], if ``wanted``), and every worker's
    weight and bias ([m, C] each).

    Args:
        gy: The gradients with respect to the output, [G, P, C].
        kept: The last result of ``normalise``.
        weight: [C], or None for 1.
        relu: True if ReLU came first.
        workers: The number m of workers; G is a multiple of m.
        wanted: True if the input needs a gradient.
    """
    given, (normal, inverse, closed) = (
        accurate(gy),
        cast(tuple[Tensor, Tensor, Tensor | None], kept),
    )
    sums, products = given.sum(1, keepdim=True), (given * normal).sum(1, keepdim=True)
    per_worker = [part.view(workers, -1, gy.shape[2]).sum(1) for part in (products, sums)]
    if not wanted:
        return None, per_worker[0], per_worker[1]
    scale = inverse if weight is None else inverse * weight
    gx = scale * (given - (sums + normal * products) / gy.shape[1])
    gx = gx.masked_fill(cast(Tensor, closed), 0) if relu else gx
    return gx.to(gy.dtype), per_worker[0], per_worker[1]


def drop(x: Tensor, seeds: Tensor, layer: int, p: float) -> tuple[Tensor, Tensor]:
    """Set values of all mini-batches to 0, each with probability p, and scale the others.

    The second result is for the backward pass: here the mask of zeros.

    Args:
        x: [N, C, ...], or [N, C].
        seeds: Seeds of the mini-batches, [G]; N is a multiple of G.
        layer: A number that distinguishes the layers of a network.
        p: The probability of 0, less than 1.
    """
    n, *sizes = x.shape
    # in the order of channels-last images in memory
    keep = kept_values(seeds, layer, x.numel() // len(seeds), p)
    keep = (
        keep.reshape(n, *sizes[1:], sizes[0]).movedim(-1, 1)
        if len(sizes) > 1
        else keep.reshape(x.shape)
    )
    dropped = ~keep
    return (x * (1 / (1 - p))).masked_fill(dropped, 0), dropped


def drop_backward(gy: Tensor, dropped: Tensor, layer: int, p: float) -> Tensor:
    """Return the gradient with respect to the input of ``drop`` from ``gy``, the gradient with
    respect to its output.
    """
    return gy.masked_fill(dropped, 0) * (1 / (1 - p))


def kept_values(seeds: Tensor, layer: int, count: int, p: float) -> Tensor:
    """Draw the mask of kept numbers of each mini-batch, each kept with probability 1 - p: bool
    [len(seeds), count].

    Each word of 32 bits serves two numbers, so that the probability is exact to 2^-16.

    Args:
        seeds: int64, one for each mini-batch, on the device.
        layer: A number that distinguishes the layers of a network.
        count: The number of values of a mini-batch.
        p: The probability of 0.
    """
    words = torch.arange(-(-count // 2), dtype=torch.int32, device=seeds.device)
    low, high = (seeds ^ signed(layer)).to(torch.int32), (seeds >> 32).to(torch.int32)
    first, second = _mix(low ^ signed(WORDS[2]))[:, None], _mix(_mix(high) ^ low)[:, None]
    hashed = _mix(_mix(words + first).bitwise_xor_(second))  # [batches, count / 2]
    least = least_kept(p)
    return torch.stack((hashed << 16 >= least, hashed >= least), 2).flatten(1)[:, :count]


def least_kept(p: float) -> int:
    """Return the smallest word whose upper half, uniform on [-2^15, 2^15), keeps a number."""
    return (min(round(p * 2 * HALF), 2 * HALF - 1) - HALF) << 16


def signed(word: int) -> int:
    """Return the int32 with the bits of a word."""
    return word - (1 << 32) if word >= 1 << 31 else word


def _mix(word: Tensor) -> Tensor:
    """Apply a bijection of 32-bit words in which every bit depends on every other (C. Wellons'
    hash-prospector).
    """
    word = (word ^ ((word >> 16) & 0xFFFF)).mul_(signed(WORDS[0]))
    word.bitwise_xor_((word >> 15).bitwise_and_(0x1FFFF)).mul_(signed(WORDS[1]))
    return word.bitwise_xor_((word >> 15).bitwise_and_(0x1FFFF))


class Functions(NamedTuple):
    """The functions of this file, or kernels that replace them."""

    normalise: Callable[..., tuple[Tensor, Tensor, Tensor, Kept]] = normalise
    normalise_backward: Callable[..., tuple[Tensor | None, ...]] = normalise_backward
    drop: Callable[..., tuple[Tensor, Tensor]] = drop
    drop_backward: Callable[..., Tensor] = drop_backward
