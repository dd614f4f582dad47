"""Choosing messages by a score, and their mean."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dynabro_cli.aggregators._finite import host_may_look


def lowest(scores: Tensor, count: int) -> Tensor:
    """The bool mask [m] of the ``count`` lowest of the scores [m]; the lowest indices win ties."""
    order = scores.sort(stable=True).indices[:count]
    return torch.zeros_like(scores, dtype=torch.bool).index_fill(0, order, True)


def mean_of(messages: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the messages [m, d] that the bool mask [m] chooses; 0 where it chooses none."""
    weights = chosen.to(messages.dtype)
    return weights @ messages / weights.sum().clamp_min(1)


def lengths(vectors: Tensor) -> Tensor:
    """The norms [m] of vectors [m, d], in double precision, in which the square of no single-precision number is infinite.

    Summing in double precision takes a CPU far longer, so it is done there only where single precision does not do.
    """
    if host_may_look(vectors):
        quick: Tensor = torch.linalg.vector_norm(vectors, dim=1).double()
        if math.isfinite(quick.detach().sum()):
            return quick
    exact: Tensor = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64)
    return exact
