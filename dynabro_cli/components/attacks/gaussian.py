"""Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import (
    REGISTRY,
    Attack,
    AttackSetting,
    State,
    honest_mean,
    replace,
)
from dynabro_cli.components.attacks._noise import noise_key, normal_noise
from dynabro_cli.core.lazy import Late, torch
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    sigma: float = parameter(200.0, above=0, help="standard deviation of every coordinate")
    around: str = parameter(
        "zero",
        choices=("zero", "mean", "own"),
        help="vector that the noise is added to: zero, the honest mean, or the worker's own",
    )


@REGISTRY.register(
    "gaussian",
    Parameters,
    reference="Blanchard, El Mhamdi, Guerraoui & Stainer, NeurIPS 2017, experiments",
)
def gaussian(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Gaussian: normal noise in place of the gradient, or around it.

    g~_i = c_i + sigma xi_i, xi_i ~ N(0, I) independently for every worker. c_i is 0 (around=zero;
    with sigma = 200 as in the paper), the mean of the honest vectors (around=mean), or g_i
    (around=own). xi depends only on the seed and on the count of past rounds (of gradient
    computations, in rounds within which identities change). So two methods with the same seed face
    the same noise.

    The state is ``tick``, this count. All MLMC levels of a round get the same xi: a message is
    attacked, not its samples.
    """
    key = noise_key(setting.seed)

    def messages(vectors: Tensor, byzantine: Tensor, state: State) -> Tensor:
        noise = parameters.sigma * normal_noise(key, state["tick"], vectors)
        if parameters.around == "mean":
            noise = honest_mean(vectors, byzantine) + noise
        elif parameters.around == "own":
            noise = vectors + noise
        return replace(vectors, byzantine, noise)

    def advance(byzantine: Tensor, state: State) -> State:
        return {"tick": state["tick"].to(byzantine.device) + 1}

    return Attack(
        Late(lambda: {"tick": torch.zeros((), dtype=torch.int64)}),
        messages,
        advance,
        reads_own=parameters.around == "own",
    )
