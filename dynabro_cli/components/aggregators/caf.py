"""Covariance-bound agnostic filter."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    declared,
    tolerated,
    weighing,
)
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.operators import opaque

if TYPE_CHECKING:
    from torch import Tensor

TIE = 1e-6
"""Weights and shares under this count as 0, because products have about this precision. Rounding
would leave a little weight to some of the messages that tie for the largest score, and a distant
message with a little weight slows down every later step.
"""


@dataclass(frozen=True)
class Parameters:
    f: int | None = parameter(
        None,
        minimum=0,
        auto=declared,
        help="Byzantine workers tolerated; auto: the declared number",
    )


@REGISTRY.register(
    "caf",
    Parameters,
    reference="Allouah, Guerraoui & Stephan, ICML 2025 (Algorithm 2 of: Towards trustworthy "
    "federated learning ...)",
)
def caf(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Covariance-bound agnostic filter (CAF): take weight from the messages that spread most; keep
    the mean of least spread.

    The weights are c_i = 1 at first. While sum_i c_i > m - 2f: mu = sum_i c_i g_i / sum_i c_i,
    lambda and v are the largest eigenvalue and its eigenvector of the covariance (1/sum_i c_i)
    sum_i c_i (g_i - mu)(g_i - mu)^T, tau_i = <g_i - mu, v>^2, and c_i <- c_i (1 - tau_i/max_j
    tau_j). A is the mu with the smallest lambda, in a tie the first. The eigenvectors are exact;
    they come from the m x m Gram matrix.

    No kappa: the paper proves one of order f/m, whose constant has not been checked here. Costs
    O(m^2 d + f m^3). Raises SpecError if 2f >= m.

    Differs from the paper: the maximum is over the messages that still have weight. So every step
    takes all weight from at least one message, and 2f steps are enough. (ByzFL's maximum is over
    all messages: a distant message without weight slows down every later step.) With f = 0 the rule
    is the mean.
    """
    f = tolerated("caf", parameters.f, setting)

    return weighing(functools.partial(weigh, f=f), None)


@opaque("caf(Tensor gram, int f) -> Tensor", lambda gram, f: torch.empty_like(gram[0]))
def weigh(gram: Tensor, f: int) -> Tensor:
    """Return the messages' weights [m] in the aggregate, from their Gram matrix [m, m] around any
    point.
    """
    m = gram.shape[0]
    counts = torch.ones(m, dtype=gram.dtype, device=gram.device)
    best, least = counts, torch.full_like(counts[0], math.inf)
    for _ in range(2 * f):
        total = counts.sum()
        shares = counts / total.clamp_min(torch.finfo(gram.dtype).tiny)
        inner = gram @ shares  # <g_i, mu>
        centred = gram - inner[:, None] - inner + shares @ inner
        # no gradient at 0, where it would be infinite
        roots = torch.where(shares > 0, shares, 1).sqrt() * (shares > 0)
        covariance = roots[:, None] * centred * roots
        eigenvalues, eigenvectors = torch.linalg.eigh(covariance.detach())
        leading = eigenvectors[:, -1]
        if covariance.requires_grad:
            leading = leading + _first_order(covariance, eigenvalues, eigenvectors)
        tau = (centred @ (roots * leading)).square()  # lambda times the paper's tau
        running = total > (m - 2 * f) * (1 + TIE)
        better = running & (eigenvalues[-1] < least * (1 - TIE))
        best, least = torch.where(better, counts, best), torch.where(better, eigenvalues[-1], least)
        largest = torch.where(counts > 0, tau, 0).amax()
        filtered = counts * (1 - tau / torch.where(largest > 0, largest, 1))
        filtered = torch.where(filtered > TIE, filtered, 0)
        counts = torch.where(running & (largest > 0), filtered, counts)
    return best


def _first_order(matrix: Tensor, eigenvalues: Tensor, eigenvectors: Tensor) -> Tensor:
    """Return 0 [m] with the gradient of the leading eigenvector: dv = (lambda I - A)^+ dA v.

    The gradient of ``torch.linalg.eigh`` is NaN if two eigenvalues are equal. Messages without
    weight have the eigenvalue 0.
    """
    gaps = eigenvalues[-1] - eigenvalues
    inverse = torch.where(gaps > TIE * eigenvalues[-1], 1 / gaps, 0)
    change = (matrix - matrix.detach()) @ eigenvectors[:, -1]
    return eigenvectors @ (inverse * (eigenvectors.mT @ change))
