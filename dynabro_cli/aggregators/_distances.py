"""Pairwise distances of messages, as several rules need them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dynabro_cli.aggregators._order import middle_mean

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

    The products are taken around the coordinate-wise median: the difference of two large squares would lose what tells
    close messages apart, and a centre that one worker can move would hand it that loss. A message too
    large for its square to be a number is infinitely far from every other.
    """
    _, offsets = around_median(messages)
    gram = (offsets @ offsets.mT).double()
    squares = gram.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp_min(0)
    return distances.nan_to_num(nan=math.inf, posinf=math.inf).fill_diagonal_(0)
