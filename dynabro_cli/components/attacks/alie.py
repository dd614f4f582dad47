"""A little is enough."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import (
    REGISTRY,
    Attack,
    AttackSetting,
    honest_spread,
    memoryless,
    replace,
)
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    z: float | None = parameter(
        None,
        auto=lambda _, setting: usual_z(setting),
        help="standard deviations from the mean; auto: from m and the round's f",
    )


def alie_z(workers: int, byzantine: int) -> float:
    """Return z = Phi^-1((m - f - s)/(m - f)) with s = max(1, floor(m/2 + 1) - f), for f Byzantine
    workers in this round.

    z = 0 if fewer than two workers are honest, or if all honest workers would have to be
    supporters: nothing can hide then.

    Example:
        >>> round(alie_z(17, 8), 2)
        1.22
    """
    honest = workers - byzantine
    supporters = max(1, workers // 2 + 1 - byzantine)
    if honest <= supporters:
        return 0.0
    return NormalDist().inv_cdf((honest - supporters) / honest)


@functools.lru_cache(maxsize=8)
def _table(workers: int) -> tuple[float, ...]:
    """Return ``alie_z`` for 0 to m Byzantine workers."""
    return tuple(alie_z(workers, byzantine) for byzantine in range(workers + 1))


def usual_z(setting: AttackSetting) -> float | None:
    """Return ``alie_z`` for the constant number of Byzantine workers; None if the number
    changes.
    """
    return None if setting.always is None else alie_z(setting.workers, setting.always)


@REGISTRY.register(
    "alie",
    Parameters,
    reference="Baruch, Baruch & Goldberg, NeurIPS 2019 (Algorithm 3); DynaBRO (ICML 2024), App. J",
)
def alie(parameters: Parameters, setting: AttackSetting) -> Attack:
    """A little is enough (ALIE): the honest mean, moved by z standard deviations in every
    coordinate.

    g~_i = g_bar - z sigma, with mean and element-wise standard deviation (ddof = 1) over the honest
    workers, z = Phi^-1((m - f - s)/(m - f)), s = max(1, floor(m/2 + 1) - f), f the number of
    Byzantine workers in the round: 1.22 at m = 17, f = 8. If fewer than two workers are honest, z =
    0.

    Differs from the paper: s is at least 1, so that z stays finite if Byzantine workers are a
    majority.
    """
    m = setting.workers
    table = _table(m) if parameters.z is None else (parameters.z,) * (m + 1)

    @functools.cache
    def scores(dtype: torch.dtype, device: torch.device) -> Tensor:
        # sent once, because the host waits for it
        return torch.tensor(table, dtype=dtype, device=device)

    def messages(vectors: Tensor, byzantine: Tensor) -> Tensor:
        z = scores(vectors.dtype, vectors.device).index_select(0, byzantine.sum()[None])
        mean, deviation = honest_spread(vectors, byzantine)
        return replace(vectors, byzantine, mean - z * deviation)

    return memoryless(messages, reads_own=False)
