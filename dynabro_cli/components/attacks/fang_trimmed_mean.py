"""Fang et al.'s attack on the trimmed mean and the median."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import (
    REGISTRY,
    Attack,
    AttackSetting,
    Defence,
    State,
    honest_weights,
    replace,
)
from dynabro_cli.components.attacks._fang import direction_parameter, signs
from dynabro_cli.components.attacks._noise import noise_key, uniform_noise
from dynabro_cli.core.lazy import Late, torch
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    b: float = parameter(2.0, above=1, help="largest factor beyond the extreme honest value")
    direction: str = direction_parameter()


@REGISTRY.register(
    "fang-trimmed-mean",
    Parameters,
    reference="Fang, Cao, Jia & Gong, USENIX Security 2020, attack on trimmed mean and median, "
    "full knowledge",
)
def fang_trimmed_mean(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Fang, trimmed-mean form: just beyond the extreme honest values, on the side opposite to the
    model's direction.

    s is the sign of the aggregate without attack, in every coordinate. If s > 0, e is the smallest
    honest value, and g~_i is drawn between e and the smaller one of e b and e/b. If s < 0, e is the
    largest honest value, and g~_i is drawn between e and the larger one of e b and e/b. By default
    b = 2. More precisely, g~_i = e r or e/r with r uniform on [1, b], drawn for every worker,
    coordinate and round. s = 0 is treated as s > 0. With direction=mean, s is the signs of the mean
    of all workers' vectors, as in the authors' code, and the defence is not asked.

    The state is ``tick``, the count of rounds (or computations). All levels of a round are drawn
    with the same r.

    Differs from the paper: the attack acts on gradients, as the authors' code does, not on local
    models, so signs are reversed. As in that code, r is uniform, so e/r is not.
    """
    key = noise_key(setting.seed)
    sees = parameters.direction == "aggregate"

    def messages(vectors: Tensor, byzantine: Tensor, state: State, *seen: Defence) -> Tensor:
        falls = signs(vectors, seen) < 0  # [d]; the attack raises g there
        honest = (honest_weights(byzantine, vectors)[0] > 0)[:, None]
        least, largest = (
            torch.where(honest, vectors, torch.inf).amin(0),
            torch.where(honest, vectors, -torch.inf).amax(0),
        )
        extreme = torch.where(falls, largest, least)
        # [m, d]
        factor = 1 + (parameters.b - 1) * uniform_noise(key, state["tick"], vectors).to(
            vectors.dtype
        )
        outward = (extreme > 0) == falls
        return replace(vectors, byzantine, torch.where(outward, extreme * factor, extreme / factor))

    def advance(byzantine: Tensor, state: State) -> State:
        return {"tick": state["tick"].to(byzantine.device) + 1}

    return Attack(
        Late(lambda: {"tick": torch.zeros((), dtype=torch.int64)}),
        messages,
        advance,
        sees_defence=sees,
    )
