"""Lengths of vectors, whose squares may overflow or underflow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.vectors.finite import host_may_look
from dynabro_cli.core.vectors.gram import unit

if TYPE_CHECKING:
    from torch import Tensor


def lengths(vectors: Tensor) -> Tensor:
    """Return the norms [m] of vectors [m, d], in double precision: no square overflows or
    underflows.

    Sums in double precision take far longer on a CPU, so they are used there only if single
    precision does not suffice.
    """
    if host_may_look(vectors) and vectors.dtype == torch.float32:
        quick: Tensor = torch.linalg.vector_norm(vectors, dim=1).double()
        norms, least = quick.tolist(), math.sqrt(vectors.shape[1] * 1e-30)
        if math.isfinite(sum(norms)) and (
            min(norms, default=least) >= least or not bool(vectors[quick < least].any())
        ):
            return quick
    scale = unit(vectors)
    scaled = vectors if vectors.dtype == torch.float32 else vectors / scale
    exact: Tensor = torch.linalg.vector_norm(scaled, dim=1, dtype=torch.float64) * scale
    return exact


def length(vector: Tensor) -> Tensor:
    """Return the norm of a vector [d], in double precision, as ``lengths`` does."""
    return lengths(vector[None])[0]


def clipped(messages: Tensor, norms: Tensor, longest: Tensor) -> Tensor:
    """Return the messages [m, d], of the given norms [m], shortened to ``longest`` if they are
    longer.
    """
    return messages * shortening(norms, longest)[:, None].to(messages.dtype)


def shortening(norms: Tensor, longest: float | Tensor) -> Tensor:
    """Return min(1, longest/norm) [m]; its gradient is finite even for a norm of 0."""
    over = norms > longest
    return torch.where(over, longest / torch.where(over, norms, 1), 1)
