"""The spread of a round's messages, by which ``dynabro:filter=adaptive`` and ``clip=`` judge a
correction.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.vectors.lengths import length, lengths

if TYPE_CHECKING:
    from torch import Tensor


def spread_of(messages: Tensor, finite: Tensor | None, aggregate: Tensor) -> Tensor:
    """Return rho, the (floor(m/2) + 1)-th smallest distance |g_i - a_0| of the messages [m, d] from
    their aggregate [d].

    With a majority of honest workers, one of the floor(m/2) + 1 nearest messages is honest. A
    message that is not finite is infinitely far away.
    """
    apart = lengths(messages - aggregate)
    if finite is not None:
        apart = torch.where(finite, apart, math.inf)
    return apart.kthvalue(len(messages) // 2 + 1).values


def accepts(difference: Tensor, computations: int, tau: float, spread: Tensor) -> Tensor:
    """Return True if |a_J - a_{J-1}| <= tau rho/2^(J/2), with 2^J computations; False if either
    side is not finite.
    """
    limit = tau * spread / math.sqrt(computations)
    return (length(difference) <= limit) & limit.isfinite()


def clipped(correction: Tensor, clip: float, spread: Tensor) -> Tensor:
    """Return the correction [d], shortened to the length ``clip`` rho if it is longer."""
    size, most = length(correction), clip * spread
    return correction * torch.where(size > most, most / size, 1).to(correction.dtype)
