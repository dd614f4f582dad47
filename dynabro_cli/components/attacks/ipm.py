"""Inner-product manipulation."""

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
    epsilon: float = parameter(0.1, above=0, help="scale of the negative mean")


@REGISTRY.register(
    "ipm", Parameters, reference="Xie, Koyejo & Gupta, UAI 2020; DynaBRO (ICML 2024), App. J"
)
def ipm(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Inner-product manipulation (IPM): minus the mean of the honest vectors, re-scaled.

    g~_i = -epsilon g_bar, g_bar the mean over the honest workers; epsilon = 0.1 as in the paper.
    """

    def messages(vectors: Tensor, byzantine: Tensor) -> Tensor:
        return replace(vectors, byzantine, -parameters.epsilon * honest_mean(vectors, byzantine))

    return memoryless(messages, reads_own=False)
