"""PoisonedFL: one direction over all rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import (
    REGISTRY,
    Attack,
    AttackSetting,
    State,
    replace,
    stay,
)
from dynabro_cli.components.attacks._noise import noise_key, uniform_noise
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import length

if TYPE_CHECKING:
    from torch import Tensor

SHRINK, LEAST = 0.7, 0.5
"""Factor of c after a window without success, and the smallest c."""


@dataclass(frozen=True)
class Parameters:
    c: float = parameter(
        8.0,
        above=0,
        help="length of a message in the first window, in multiples of the last update's length",
    )
    window: int = parameter(50, minimum=1, help="rounds between two tests of success")
    p: float = parameter(0.01, above=0, below=0.5, help="significance level of the test")


@REGISTRY.register(
    "poisonedfl",
    Parameters,
    reference="Xie, Fang & Gong, CVPR 2025, arXiv 2404.15611 (PoisonedFL), Section 4",
)
def poisonedfl(parameters: Parameters, setting: AttackSetting) -> Attack:
    """PoisonedFL: all Byzantine workers push in one random direction s in {-1, 1}^d, the same in
    all rounds.

    g~_i = c_t |g_{t-1}| v_t s, element by element, with v_t = |u_t|/|u_t|_2 and u_t = g_{t-1} -
    (|g_{t-1}|/|g~_{t-1}|) g~_{t-1}. Here g_{t-1} is the server's update in the round before, in
    units of the learning rate, and g~_{t-1} the message of that round. In the first round g~_i = 0.
    After each window of rounds the attack tests if the sum of the updates agrees with s in more
    coordinates than by chance, at least d/2 + z_p sqrt(d)/2. If not, c becomes 0.7 c, unless that
    is under 0.5.

    The attack needs only the server's updates, no honest worker's vector. The plan belongs to the
    adversary: s, c and the window continue whoever is Byzantine, also through rounds without
    Byzantine workers.

    The state is ``signs`` [d], ``message`` [d], ``total`` [d], ``c`` and ``rounds``; it is empty
    before the first update.

    Differs from the paper: messages are gradients, and the server steps against them, so s is the
    direction of -x. The normal quantile replaces the binomial one. Coordinates that have not moved
    count as failures. An update that is not finite changes nothing.
    """
    key, z = noise_key(setting.seed), -NormalDist().inv_cdf(parameters.p)  # 1 - p may be 1

    def messages(vectors: Tensor, byzantine: Tensor, state: State) -> Tensor:
        return replace(
            vectors,
            byzantine,
            state["message"].to(vectors.dtype) if state else torch.zeros_like(vectors[0]),
        )

    def follow(update: Tensor, state: State) -> State:
        if not state:
            draws = uniform_noise(
                key, torch.zeros((), dtype=torch.int64, device=update.device), update[None]
            )[0]
            state = {
                "signs": torch.where(draws < 0.5, -1.0, 1.0).to(update.dtype),
                "message": torch.zeros_like(update),
                "total": torch.zeros_like(update),
                "c": torch.full((), parameters.c, dtype=torch.float64, device=update.device),
                "rounds": torch.zeros((), dtype=torch.int64, device=update.device),
            }
        total, rounds, size = state["total"] + update, state["rounds"] + 1, length(update)
        aligned = (total.sign() == state["signs"]).sum()
        failed = aligned < len(update) / 2 + z * math.sqrt(len(update)) / 2
        ends = rounds % parameters.window == 0
        shrinks = ends & failed & (SHRINK * state["c"] >= LEAST)
        c = torch.where(shrinks, SHRINK * state["c"], state["c"])
        scale = _unit(_unit(update) - _unit(state["message"])).abs()
        following = {
            "signs": state["signs"],
            "message": (c * size * scale).to(update.dtype) * state["signs"],
            "total": torch.where(ends, 0, total),
            "c": c,
            "rounds": rounds,
        }
        finite = (
            size.isfinite()
            & following["message"].isfinite().all()
            & following["total"].isfinite().all()
        )
        return {name: torch.where(finite, value, state[name]) for name, value in following.items()}

    return Attack({}, messages, stay, reads_own=False, follow=follow)


def _unit(vector: Tensor) -> Tensor:
    """Return the vector [d] scaled to length 1, in double precision; 0 if it is 0."""
    size = length(vector)
    return torch.where(size > 0, vector.double() / size, 0)
