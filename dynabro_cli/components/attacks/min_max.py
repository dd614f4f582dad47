"""Min-Max."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import REGISTRY, Attack, AttackSetting, memoryless, replace
from dynabro_cli.components.attacks._perturbations import Parameters, perturb

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register(
    "min-max", Parameters, reference="Shejwalkar & Houmansadr, NDSS 2021, Min-Max (AGR-agnostic)"
)
def min_max(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Min-Max: farthest from the honest mean, but no farther from an honest vector than two honest
    vectors are apart.

    g~_i = g_bar + gamma p, with the largest gamma such that max_j |g~ - g_j| <= max_{j,k} |g_j -
    g_k| over honest j and k; p is -std (perturbation=std), -g_bar (unit) or -sign(g_bar) (sign).
    All Byzantine workers send the same message.

    Differs from the paper: gamma is exact. The paper's Algorithm 1 searches for it from gamma = 10
    with halved steps. With |p| = 1, c_j = |g_j - g_bar|^2, b_j = p (g_bar - g_j) and D the largest
    distance, worker j allows gamma up to the larger root of gamma^2 + 2 b_j gamma + c_j - D^2. The
    root is at least 0 because c_j <= D^2.
    """

    def messages(vectors: Tensor, byzantine: Tensor) -> Tensor:
        mean, size, deviations, direction = perturb(vectors, byzantine, parameters.perturbation)
        # [m, m]; rows of Byzantine workers stand for the mean, which does not bind
        products = deviations @ deviations.T
        squares = products.diagonal()
        largest = (squares[:, None] + squares - 2 * products).max()
        towards = -(deviations @ direction)  # b, [m]
        allowed = (towards.square() + (largest - squares).clamp_min(0)).sqrt() - towards
        return replace(vectors, byzantine, mean + allowed.min().clamp_min(0) * size * direction)

    return memoryless(messages, reads_own=False)
