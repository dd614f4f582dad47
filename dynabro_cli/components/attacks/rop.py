"""Relocated orthogonal perturbation."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import (
    REGISTRY,
    Attack,
    AttackSetting,
    State,
    honest_mean,
    replace,
    stay,
)
from dynabro_cli.components.attacks.alie import alie_z, usual_z
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import length

if TYPE_CHECKING:
    from torch import Tensor

ROUNDING = 1e-9
"""Share of the length of (1, ..., 1) up to which its orthogonal part counts as rounding, not as a
direction.
"""


@dataclass(frozen=True)
class Parameters:
    z: float | None = parameter(
        None,
        auto=lambda _, setting: usual_z(setting),
        help="length of the perturbation; auto: the z of alie",
    )
    angle: float = parameter(
        270.0,
        minimum=0,
        maximum=360,
        help="degrees between perturbation and reference; 90 and 270 are orthogonal",
    )
    weight: float = parameter(
        0.9, minimum=0, maximum=1, help="lambda: weight of the last update in the reference"
    )
    place: float = parameter(
        1.0, minimum=0, maximum=1, help="pi: 1 perturbs the last update, 0 the honest mean"
    )


@REGISTRY.register(
    "rop",
    Parameters,
    reference="Ozfatura, Ozfatura, Kupcu & Gunduz, IEEE TIFS 2024, arXiv 2208.09894 (ROP), "
    "Algorithm 2",
)
def rop(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Relocated orthogonal perturbation (ROP): the last update, moved at a right angle to where the
    run is heading.

    g~_i = pi u + (1 - pi) g_bar + z (sin(theta) o + cos(theta) r). u is the update that the server
    made in the round before, g_bar the honest mean, r the unit vector along lambda u + (1 - lambda)
    g_bar, and o the unit vector along 1 - (1'r) r, the part of (1, ..., 1) that is orthogonal to r.
    In the first round u = 0, and r is along g_bar. A vector without a direction counts as 0.

    The attack targets centred clipping, whose centre is u. z is an absolute length, not a multiple
    of gradients. The plan belongs to the adversary: whoever is Byzantine next knows u. The state is
    ``update`` [d], empty before the first one.

    Differs from the paper: u is the server's step in units of the learning rate, so that it is
    defined for methods that do more than aggregate. The defaults come from the authors' library:
    the z of ALIE, an angle of 270 degrees.
    """
    m = setting.workers
    table = tuple(
        alie_z(m, count) if parameters.z is None else parameters.z for count in range(m + 1)
    )
    sine, cosine = (
        math.sin(math.radians(parameters.angle)),
        math.cos(math.radians(parameters.angle)),
    )

    @functools.cache
    def sizes(dtype: torch.dtype, device: torch.device) -> Tensor:
        # sent once, because the host waits for it
        return torch.tensor(table, dtype=dtype, device=device)

    def messages(vectors: Tensor, byzantine: Tensor, state: State) -> Tensor:
        mean = honest_mean(vectors, byzantine)
        update = state["update"].to(mean.dtype) if state else torch.zeros_like(mean)
        heading = parameters.weight * update + (1 - parameters.weight) * mean if state else mean
        reference = _unit(heading.double())  # so that compiled code rounds it in the same way
        across = _unit(1 - reference.sum() * reference, ROUNDING * math.sqrt(len(mean)))
        z = sizes(vectors.dtype, vectors.device).index_select(0, byzantine.sum()[None])
        moved = z * (sine * across + cosine * reference).to(vectors.dtype)
        return replace(
            vectors, byzantine, parameters.place * update + (1 - parameters.place) * mean + moved
        )

    def follow(update: Tensor, state: State) -> State:
        last = state["update"] if state else torch.zeros_like(update)
        return {"update": torch.where(update.isfinite().all(), update, last)}

    return Attack({}, messages, stay, reads_own=False, follow=follow)


def _unit(vector: Tensor, least: float = 0.0) -> Tensor:
    """Return the vector [d] scaled to length 1; 0 if its length is at most ``least``."""
    size = length(vector)
    return torch.where(size > least, vector / size, 0)
