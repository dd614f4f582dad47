"""SignGuard."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    numbered,
    tolerated,
)
from dynabro_cli.components.aggregators._draws import Draws
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine import gpu_kernels
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import lengths, shortening
from dynabro_cli.core.vectors.means import weighted
from dynabro_cli.core.vectors.operators import opaque

if TYPE_CHECKING:
    from torch import Tensor

STEPS = 300
"""Largest number of steps of a mean shift, as in scikit-learn; few are needed."""

# shares are at most 1: rounding must not decide if a point at the bandwidth is within it
SLACK = 1e-9


@dataclass(frozen=True)
class Parameters:
    L: float = parameter(
        0.1,
        minimum=0,
        maximum=1,
        help="messages shorter than L times the median length are left out",
    )
    R: float = parameter(
        3.0, minimum=1, help="messages longer than R times the median length are left out"
    )
    share: float = parameter(
        0.1,
        above=0,
        maximum=1,
        help="share of the coordinates, drawn at random, whose signs are counted",
    )


@REGISTRY.register(
    "signguard",
    Parameters,
    reference="Xu, Huang, Song & Lan, ICDCS 2022 (Algorithm 2, plain SignGuard)",
)
def signguard(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """SignGuard: the mean of messages with a usual length and the most common signs, clipped to the
    median length.

    With M the median of the |g_i|: S_1 = {i : L M <= |g_i| <= R M}; S_2 = the largest cluster of
    the workers by their shares of positive, zero and negative coordinates, among ceil(share d)
    random ones; A(g_1, ..., g_m) = mean over S_1 and S_2 of g_i min(1, M/|g_i|), and 0 if no
    message is in both. Clusters are found by mean shift (``largest_cluster``).

    The coordinates depend only on the seed and on the call's number, which is the rule's state. No
    kappa is proved. Costs O(m d + m^3). Raises SpecError if 2f >= m with f the declared number of
    Byzantine workers, which the rule itself does not use.

    Differs from the paper: one coordinate is drawn from each of ceil(share d) equally long
    stretches, instead of any coordinates. The paper does not define the aggregate if no message is
    in both sets.
    """
    m = setting.workers
    tolerated("signguard", None, setting)
    draws = Draws(setting.seed)

    def rule(messages: Tensor, call: Tensor) -> Tensor:
        norms, d = lengths(messages), messages.shape[1]
        ordered = norms.sort().values
        median = (ordered[(m - 1) // 2] + ordered[m // 2]) / 2
        usual = (norms >= parameters.L * median) & (norms <= parameters.R * median)
        count = math.ceil(parameters.share * d)
        part = (
            messages
            if count == d
            else messages.index_select(1, draws.coordinates(call, count, d, messages.device))
        )
        counts = torch.stack([(part > 0).sum(1), (part == 0).sum(1), (part < 0).sum(1)], 1)
        chosen = usual & largest_cluster(counts.double() / count)
        factors = shortening(norms, median) * chosen
        return weighted(messages, factors, chosen.sum())

    return numbered(rule, None)


@opaque(
    "largest_cluster(Tensor features) -> Tensor",
    lambda features: features.new_empty(len(features), dtype=torch.bool),
)
def largest_cluster(features: Tensor) -> Tensor:
    """Return the bool mask [m] of the largest cluster of points [m, 3], by mean shift with a flat
    kernel.

    The bandwidth is the mean distance of a point to its floor(m/2)-th nearest point, counting
    itself. Every point climbs: it is replaced by the mean of all points within the bandwidth of its
    place, until it no longer moves. The cluster is all points within the bandwidth of the summit
    that has most points; in a tie, of the summit with the lowest index.

    On a GPU all steps are one Triton kernel for at most 64 workers. With more workers, or if Triton
    does not work, they run on the CPU.
    """
    if len(features) <= gpu_kernels.MOST_ROWS and gpu_kernels.triton_works("signguard", features):
        from dynabro_cli.components.aggregators._kernels.mean_shift_kernel import cluster_of

        return gpu_kernels.checked(
            "signguard",
            features.shape,
            lambda: cluster_of(features, SLACK, STEPS),
            lambda: largest_cluster(features),
        )
    points = features.cpu()
    m = len(points)
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    bandwidth = distances.sort(1).values[:, max(1, m // 2) - 1].mean() * (1 + SLACK) + SLACK
    summits = points
    for _ in range(STEPS):
        within = (
            torch.cdist(summits, points, compute_mode="donot_use_mm_for_euclid_dist") <= bandwidth
        ).to(points.dtype)
        moved = within @ points / within.sum(1, keepdim=True).clamp_min(1)
        if torch.equal(moved, summits):
            break
        summits = moved
    within = torch.cdist(summits, points, compute_mode="donot_use_mm_for_euclid_dist") <= bandwidth
    # compiled code needs aligned memory
    return within[within.sum(1).argmax()].clone().to(features.device)
