"""Batch normalisation, the ReLU before it, and dropout, as functions without state: a compiler makes a few kernels of each.

As they are, they take a kernel an operation. On a GPU each kernel reads and writes all activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from dynabro_cli.gradients.masks import kept as kept_values

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
Kept = tuple[Tensor | None, ...]
"""Tensors that batch norm keeps for its backward pass."""


def accurate(x: Tensor) -> Tensor:
    """Return ``x`` in single precision, or in double if it is double."""
    return x.float() if x.dtype == torch.bfloat16 else x


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Kept]:
    """Normalise every mini-batch by its own statistics (Ioffe & Szegedy, 2015), after ReLU if wanted.

    Args:
        x: The values of G mini-batches, [G, P, C], with P values a channel.
        weight: [C], or None for 1.
        bias: [C], or None for 0.
        eps: Added to the variance.
        relu: Whether ReLU comes first.

    Returns:
        The output in the type of ``x``; mean and variance, [G, 1, C]; and for the backward pass ``normal`` [G, P, C],
        ``inverse`` [G, 1, C], and where ReLU lets no gradient pass, if it comes first.
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
    """Return the gradients by input, [G, P, C] if ``wanted``, and by every worker's weight and bias, [m, C] each.

    Args:
        gy: The gradients by the output, [G, P, C].
        kept: The last result of ``normalise``.
        weight: [C], or None for 1.
        relu: Whether ReLU came first.
        workers: m, of which G is a multiple.
        wanted: Whether the input has a gradient.
    """
    given, (normal, inverse, closed) = accurate(gy), cast(tuple[Tensor, Tensor, Tensor | None], kept)
    sums, products = given.sum(1, keepdim=True), (given * normal).sum(1, keepdim=True)
    own = [part.view(workers, -1, gy.shape[2]).sum(1) for part in (products, sums)]
    if not wanted:
        return None, own[0], own[1]
    scale = inverse if weight is None else inverse * weight
    gx = scale * (given - (sums + normal * products) / gy.shape[1])
    gx = gx.masked_fill(cast(Tensor, closed), 0) if relu else gx
    return gx.to(gy.dtype), own[0], own[1]


def drop(x: Tensor, seeds: Tensor, layer: int, p: float) -> tuple[Tensor, Tensor]:
    """Set values of all mini-batches to 0, each with probability p, and scale the others; return where values are 0, too.

    Args:
        x: [N, C, ...], or [N, C].
        seeds: Of the mini-batches, [G]; N is a multiple of G.
        layer: A number that tells the layers of a network apart.
        p: The probability of 0, less than 1.
    """
    n, *sizes = x.shape
    keep = kept_values(seeds, layer, x.numel() // len(seeds), p)  # in the order of channels-last images in memory
    keep = keep.reshape(n, *sizes[1:], sizes[0]).movedim(-1, 1) if len(sizes) > 1 else keep.reshape(x.shape)
    dropped = ~keep
    return (x * (1 / (1 - p))).masked_fill(dropped, 0), dropped


def drop_backward(gy: Tensor, dropped: Tensor, p: float) -> Tensor:
    """Return the gradient by the input of ``drop``, of the shape of ``gy``, the gradient by its output."""
    return gy.masked_fill(dropped, 0) * (1 / (1 - p))


class Functions(NamedTuple):
    """The functions of this file, as they are or compiled."""

    normalise: Callable[..., tuple[Tensor, Tensor, Tensor, Kept]] = normalise
    normalise_backward: Callable[..., tuple[Tensor | None, Tensor, Tensor]] = normalise_backward
    drop: Callable[..., tuple[Tensor, Tensor]] = drop
    drop_backward: Callable[..., Tensor] = drop_backward
