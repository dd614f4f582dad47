"""Pairwise distances of messages, as several rules need them."""

from __future__ import annotations

import math

from torch import Tensor

from dynabro_cli.aggregators._order import middle_mean


def squared_distances(messages: Tensor) -> Tensor:
    """|g_i - g_j|^2 for all pairs: [m, d] -> [m, m], in double precision, zero on the diagonal.

    The products are taken around the coordinate-wise median: the difference of two large squares would lose what tells
    close messages apart, and a centre that one worker can move would hand it that loss. A message too
    large for its square to be a number is infinitely far from every other.
    """
    m = messages.shape[0]
    offsets = messages - middle_mean(messages, (m - 1) // 2)
    gram = (offsets @ offsets.mT).double()
    squares = gram.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp_min(0)
    return distances.nan_to_num(nan=math.inf, posinf=math.inf).fill_diagonal_(0)
