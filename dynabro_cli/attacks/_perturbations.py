"""What Min-Max and Min-Sum share: the honest mean, and the direction in which it is perturbed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dynabro_cli.attacks._api import honest_weights
from dynabro_cli.components import parameter


@dataclass(frozen=True)
class Parameters:
    perturbation: str = parameter(
        "std", choices=("std", "unit", "sign"), help="direction: against the deviations, the mean, or the mean's signs"
    )


def perturb(own: Tensor, byzantine: Tensor, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """The honest mean [d], the honest deviations from it [m, d], 0 for the others, and the unit direction [d].

    The direction is along -std, -mean or -sign(mean), element-wise over the honest workers; 0 where that is 0. Its length does
    not matter to an attack that looks for the largest multiple of it.
    """
    weights, count = honest_weights(byzantine, own)
    mean = (weights / count) @ own
    deviations = torch.where(weights[:, None] > 0, own - mean, 0)
    along = {"std": lambda: deviations.square().sum(0).sqrt(), "unit": lambda: mean, "sign": lambda: mean.sign()}[kind]()
    tiny = torch.finfo(own.dtype).tiny
    return mean, deviations, -along / along.norm().clamp_min(tiny)
