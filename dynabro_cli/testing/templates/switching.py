"""A block of neighbouring workers is Byzantine, and moves on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components import parameter
from dynabro_cli.lazy import torch
from dynabro_cli.switching._api import REGISTRY, Switching, SwitchingSetting, check_count

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    K: int = parameter(10, minimum=1, help="ticks between two moves")
    step: int = parameter(1, minimum=1, help="workers that a move passes")


@REGISTRY.register("my-switching", Parameters, reference="who, where, which algorithm")
def my_switching(parameters: Parameters, setting: SwitchingSetting) -> Switching:
    """Block of f neighbouring workers, which moves on by ``step`` workers every K ticks."""
    check_count(setting)

    def mask(tick: int) -> Tensor:  # bool [m]
        first = tick // parameters.K * parameters.step
        return (torch.arange(setting.workers) - first) % setting.workers < setting.byzantine

    return Switching(mask, always=setting.byzantine)
