"""Common part of Min-Max and Min-Sum: the honest mean, and the direction in which it is
perturbed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dynabro_cli.components.attacks._api import honest_size, honest_weights, scaled_difference
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.means import weighted

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    perturbation: str = parameter(
        "std",
        choices=("std", "unit", "sign"),
        help="direction: against the deviations, the mean, or the mean's signs",
    )


class Perturbation(NamedTuple):
    """Honest mean [d], a size, honest deviations divided by it [m, d] (0 for Byzantine workers),
    and unit direction [d].
    """

    mean: Tensor
    size: Tensor
    deviations: Tensor
    direction: Tensor


def perturb(vectors: Tensor, byzantine: Tensor, kind: str) -> Perturbation:
    """Return the honest vectors' statistics, and the direction in which their mean is moved.

    The direction is along -std, -mean or -sign(mean), element-wise over the honest workers; it is 0
    if that vector is 0. Its length does not matter to an attack that looks for the largest multiple
    of it. Deviations are divided by ``honest_size``, so that their squares do not overflow.
    """
    weights, _ = honest_weights(byzantine, vectors)
    mean, size = weighted(vectors, weights), honest_size(vectors, weights)
    deviations = torch.where(weights[:, None] > 0, scaled_difference(vectors, mean, size), 0)
    along = {
        "std": lambda: deviations.square().sum(0).sqrt(),
        "unit": lambda: mean / size,
        "sign": lambda: mean.sign(),
    }[kind]()
    tiny = torch.finfo(vectors.dtype).tiny
    return Perturbation(mean, size, deviations, -along / along.norm().clamp_min(tiny))
