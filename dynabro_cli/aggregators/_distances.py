"""Pairwise distances of messages, as several rules need them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dynabro_cli.aggregators._finite import host_may_look
from dynabro_cli.aggregators._order import middle_mean

CLOSE = 1e-2
"""Where a squared distance is this share of the squared lengths, or more, rounding takes no more than 1e-4 of it."""

LARGEST = 1e60
"""Entries are scaled down to this where they are larger: with far larger products, LAPACK's eigenvalues may not converge."""

# An operator of its own, so that the compiler computes its input once: left alone it would repeat the sorting network in
# every row of what is made of it.
_LIBRARY = torch.library.Library("dynabro", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("computed_once(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("computed_once", torch.clone, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("dynabro::computed_once", torch.empty_like, lib=_LIBRARY)


def around_median(messages: Tensor) -> tuple[Tensor, Tensor]:
    """The coordinate-wise median [d] of messages [m, d], and the messages around it [m, d]."""
    median = middle_mean(messages, (messages.shape[0] - 1) // 2)
    if torch.compiler.is_compiling():
        median = torch.ops.dynabro.computed_once(median)
    return median, messages - median


def squared_distances(messages: Tensor) -> Tensor:
    """|g_i - g_j|^2 for all pairs: [m, d] -> [m, m], in double precision, zero on the diagonal.

    Where two messages are close to each other beside their lengths, the difference of two large squares would lose what tells
    them apart. The products are then taken around the coordinate-wise median (a centre that one worker can move would hand
    it that loss). That takes longer, so it is done only where it is needed; or at once, where looking would make the
    host wait for a GPU, or cannot be compiled. A message too large for its square to be a number is infinitely far from
    every other.
    """
    if host_may_look(messages):
        distances, sums = _from_products(_products(messages))
        if _told_apart(messages, distances < CLOSE * sums):
            return distances
    return _from_products(_products(around_median(messages)[1]))[0]


def products(messages: Tensor) -> Tensor:
    """<g_i - c, g_j - c> for all pairs, c some vector: [m, d] -> [m, m], in double precision, up to a common factor.

    c is such that what tells messages apart is not lost beside their lengths, as in ``squared_distances``. Products are of a
    size at which eigenvalues can be computed, however large the messages are; and 0 where these are NaN.
    """
    if host_may_look(messages):
        gram = _products(messages)
        distances, sums = _from_products(gram)
        if gram.diagonal().amax() < LARGEST**2 and _told_apart(messages, distances < CLOSE * sums):
            return gram
    return _scaled_products(around_median(messages)[1])


def _scaled_products(vectors: Tensor) -> Tensor:
    """The products of vectors that are divided by their largest entry before, and multiplied by it after."""
    largest = vectors.abs().amax(1).nan_to_num()  # [m]
    units = vectors / torch.where(largest > 0, largest, 1)[:, None]
    sizes = largest.double() / (largest.double().amax() / LARGEST).clamp_min(1)
    return _products(units).nan_to_num() * sizes[:, None] * sizes


def _products(vectors: Tensor) -> Tensor:
    return (vectors @ vectors.mT).double()


def _from_products(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances of all pairs, and the sums of their squared lengths: [m, m] each."""
    squares = gram.diagonal()
    sums = squares[:, None] + squares[None, :]
    distances = (sums - 2 * gram).clamp_min(0)
    return distances.nan_to_num(nan=math.inf, posinf=math.inf).fill_diagonal_(0), sums


def _told_apart(messages: Tensor, close: Tensor) -> bool:
    """Whether the only pairs that are close, [m, m], are of equal messages."""
    for j, row in enumerate(close.tolist()):
        first = row.index(True) if True in row else j
        if first < j and not torch.equal(messages[first], messages[j]):
            return False
    return True
