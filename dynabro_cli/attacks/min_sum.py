"""Min-Sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.attacks._api import REGISTRY, Attack, AttackSetting, memoryless, replace
from dynabro_cli.attacks._perturbations import Parameters, perturb

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register("min-sum", Parameters, reference="Shejwalkar & Houmansadr, NDSS 2021, Min-Sum (AGR-agnostic)")
def min_sum(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Min-Sum: as far from the honest mean as leaves the squared distances to the honest vectors no larger a sum than theirs.

    g~_i = g_bar + gamma p, with the largest gamma such that sum_j |g~ - g_j|^2 <= max_k sum_j |g_k - g_j|^2 over honest j, k; p
    is -std (perturbation=std), -g_bar (unit) or -sign(g_bar) (sign). All of f Byzantine workers send the same.

    Differs from the paper: gamma is exact, not the result of its Algorithm 1, a search by halved steps from gamma = 10. With
    |p| = 1 the sums are n gamma^2 + sum_j c_j and n c_k + sum_j c_j, c_j = |g_j - g_bar|^2, so gamma = max_j |g_j - g_bar|: the
    attack is as far from the mean as the farthest honest vector.
    """

    def messages(own: Tensor, byzantine: Tensor) -> Tensor:
        mean, size, deviations, direction = perturb(own, byzantine, parameters.perturbation)
        return replace(own, byzantine, mean + deviations.norm(dim=1).max() * size * direction)

    return memoryless(messages, reads_own=False)
