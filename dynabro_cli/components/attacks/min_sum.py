"""Min-Sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import REGISTRY, Attack, AttackSetting, memoryless, replace
from dynabro_cli.components.attacks._perturbations import Parameters, perturb

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register(
    "min-sum", Parameters, reference="Shejwalkar & Houmansadr, NDSS 2021, Min-Sum (AGR-agnostic)"
)
def min_sum(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Min-Sum: farthest from the honest mean, with a sum of squared distances no larger than an
    honest vector's.

    g~_i = g_bar + gamma p, with the largest gamma such that sum_j |g~ - g_j|^2 <= max_k sum_j |g_k
    - g_j|^2 over honest j, k; p is -std (perturbation=std), -g_bar (unit) or -sign(g_bar) (sign).
    All Byzantine workers send the same message.

    Differs from the paper: gamma is exact. The paper's Algorithm 1 searches for it from gamma = 10
    with halved steps. With |p| = 1 the sums are n gamma^2 + sum_j c_j and n c_k + sum_j c_j, c_j =
    |g_j - g_bar|^2, so gamma = max_j |g_j - g_bar|: the attack is as far from the mean as the
    farthest honest vector.
    """

    def messages(vectors: Tensor, byzantine: Tensor) -> Tensor:
        mean, size, deviations, direction = perturb(vectors, byzantine, parameters.perturbation)
        return replace(vectors, byzantine, mean + deviations.norm(dim=1).max() * size * direction)

    return memoryless(messages, reads_own=False)
