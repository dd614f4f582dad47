"""Fang et al.'s attack on Krum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import (
    REGISTRY,
    Attack,
    AttackSetting,
    Defence,
    State,
    honest_size,
    honest_weights,
    replace,
    stay,
)
from dynabro_cli.components.attacks._fang import direction_parameter, signs
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.means import weighted

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    threshold: float = parameter(
        1e-5, above=0, below=1, help="smallest lambda tried, as a share of its upper bound"
    )
    direction: str = direction_parameter()


def _trials(parameters: Parameters) -> int:
    """Return the number of lambdas that are tried."""
    return 1 + math.floor(-math.log2(parameters.threshold))


@REGISTRY.register(
    "fang-krum",
    Parameters,
    reference="Fang, Cao, Jia & Gong, USENIX Security 2020, attack on Krum, full knowledge",
)
def fang_krum(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Fang, Krum form: against the model's direction, as far as Krum still selects the message.

    g~_i = -lambda s for all c Byzantine workers of the round, s the signs of the aggregate without
    attack. lambda starts at its bound, sqrt(min_i S_i/(m - 2c - 1))/|s| + max_i |g_i|/|s| over
    honest i, S_i the sum of |g_i - g_j|^2 over the m - c - 2 honest j nearest to i. It is halved
    until Krum with f = c would select -lambda s, or until the next lambda would be under threshold=
    times the bound. |s| is sqrt(d) if no sign is 0. With direction=mean, s is the signs of the mean
    of all workers' vectors, as in the authors' code, and the defence is not asked.

    Differs from the paper: the attack acts on gradients, as the authors' code does, so the model
    before the round is at 0. The threshold is relative, because gradients have no fixed scale. The
    c vectors are equal, not only close to each other. m - 2c - 1 is at least 1, so that the bound
    exists if many workers are Byzantine. The attack assumes that the defence is Krum with f = c.
    """
    m = setting.workers
    trials = _trials(parameters)
    sees = parameters.direction == "aggregate"

    def messages(vectors: Tensor, byzantine: Tensor, _: State, *seen: Defence) -> Tensor:
        towards = signs(vectors, seen)
        length = towards.double().norm().clamp_min(1)
        weights, _count = honest_weights(byzantine, vectors)
        size = honest_size(vectors, weights)
        scaled = vectors / size  # so that squares do not overflow
        scored = (m - byzantine.sum() - 2).clamp_min(0)  # Krum's number of neighbours
        apart = _squared_distances(scaled, weights)
        bound = _bound(
            scaled, weights > 0, apart, scored, (m - 2 * byzantine.sum() - 1).clamp_min(1), length
        )
        tried = bound * 0.5 ** torch.arange(trials, dtype=torch.float64, device=vectors.device)
        selected = _selected(scaled, byzantine, apart, scored, towards, tried)  # [trials]
        first = torch.where(selected.any(), selected.int().argmax(), trials - 1)
        chosen = (tried.index_select(0, first[None])[0] * size).to(vectors.dtype)
        return replace(vectors, byzantine, -chosen * towards)

    return Attack({}, messages, stay, sees_defence=sees)


def _squared_distances(vectors: Tensor, weights: Tensor) -> Tensor:
    """Return |g_i - g_j|^2 for all pairs, [m, d] -> [m, m], in double precision; Byzantine rows
    stand for the honest mean.
    """
    # so that rounding loses little
    around = torch.where(weights[:, None] > 0, vectors - weighted(vectors, weights), 0)
    gram = (around @ around.mT).double()
    squares = gram.diagonal()
    return (squares[:, None] + squares - 2 * gram).clamp_min(0).fill_diagonal_(0)


def _sum_of_least(distances: Tensor, count: Tensor) -> Tensor:
    """Return the sum of the ``count`` smallest values of the last dimension, without a vector's
    distance from itself.
    """
    ordered = distances.sort(-1).values[..., 1:]
    taken = torch.arange(ordered.shape[-1], device=ordered.device) < count
    return torch.where(taken, ordered, 0).sum(-1)


def _bound(
    vectors: Tensor, honest: Tensor, apart: Tensor, scored: Tensor, divisor: Tensor, length: Tensor
) -> Tensor:
    """Return the largest lambda at which Krum may still select -lambda s."""
    among = torch.where(honest, apart, torch.inf)
    sums = torch.where(
        honest, _sum_of_least(among, torch.minimum(scored, honest.sum() - 1)), torch.inf
    )
    farthest = torch.where(honest, vectors.square().sum(1).double(), 0).max().sqrt()
    return (sums.min() / divisor).sqrt() / length + farthest / length


def _selected(
    vectors: Tensor,
    byzantine: Tensor,
    apart: Tensor,
    scored: Tensor,
    towards: Tensor,
    tried: Tensor,
) -> Tensor:
    """Return a mask [n], True for each of the tried lambdas [n] at which Krum selects -lambda s."""
    along = (vectors @ towards).double()
    squares = vectors.square().sum(1).double()
    # [n, m]
    to_attack = (
        squares
        + 2 * tried[:, None] * along
        + tried[:, None].square() * towards.double().square().sum()
    )
    to_attack = to_attack.clamp_min(0)
    # [n, m, m], the honest one's distance
    of_pair = torch.where(byzantine, to_attack[:, :, None], to_attack[:, None, :])
    # 0 between two Byzantine workers
    distances = torch.where(byzantine[:, None] ^ byzantine, of_pair, apart)
    scores = _sum_of_least(distances, scored)  # [n, m]
    return torch.where(byzantine, scores, torch.inf).amin(1) <= torch.where(
        byzantine, torch.inf, scores
    ).amin(1)
