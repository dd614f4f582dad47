"""Byzantine workers send the honest value that is farthest from where the honest mean points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.attacks._api import REGISTRY, Attack, AttackSetting, honest_mean, honest_weights, memoryless, replace
from dynabro_cli.components import parameter
from dynabro_cli.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    scale: float = parameter(1.0, above=0, maximum=1, help="factor of the vector that is sent")


@REGISTRY.register("my-attack", Parameters, reference="who, where, which algorithm")
def my_attack(parameters: Parameters, setting: AttackSetting) -> Attack:
    """The smallest honest entry where the honest mean is positive, and the largest where it is not, times ``scale``."""

    def messages(own: Tensor, byzantine: Tensor) -> Tensor:  # [m, d], [m] -> [m, d]
        honest = honest_weights(byzantine, own)[0].bool()[:, None]
        smallest = torch.where(honest, own, float("inf")).amin(0)
        largest = torch.where(honest, own, -float("inf")).amax(0)
        sent = torch.where(honest_mean(own, byzantine) > 0, smallest, largest)
        return replace(own, byzantine, parameters.scale * sent)

    return memoryless(messages, reads_own=False)
