"""Fall of Empires."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import (
    REGISTRY,
    Attack,
    AttackSetting,
    honest_mean,
    memoryless,
    replace,
)
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    epsilon: float = parameter(1.0, above=0, help="scale of the negative mean")


@REGISTRY.register(
    "foe",
    Parameters,
    reference="Xie, Koyejo & Gupta, UAI 2019 (PMLR 115, 2020); epsilon = 1 as in ByzPy",
)
def foe(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Fall of Empires (FOE): minus the mean of the honest vectors; the formula of ipm with another
    default.

    g~_i = -epsilon g_bar, g_bar the mean over the honest workers, epsilon = 1: foe is
    ipm:epsilon=1, and foe:epsilon=0.1 is ipm. The paper with this title calls its attack
    inner-product manipulation; others call it FOE and write g_bar + zeta a with a = -g_bar (Allouah
    et al., AISTATS 2023), which is epsilon = zeta - 1. Runs under the two names have different
    keys.
    """

    def messages(vectors: Tensor, byzantine: Tensor) -> Tensor:
        return replace(vectors, byzantine, -parameters.epsilon * honest_mean(vectors, byzantine))

    return memoryless(messages, reads_own=False)
