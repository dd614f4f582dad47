"""Geometric median."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dynabro_cli.aggregators._api import REGISTRY, Aggregator, AggregatorSetting, stateless, tolerated
from dynabro_cli.aggregators._order import middle_mean
from dynabro_cli.components import parameter


@dataclass(frozen=True)
class Parameters:
    T: int = parameter(100, minimum=1, help="most Weiszfeld steps")
    nu: float = parameter(1e-6, above=0, help="smoothing: distances under nu times the median distance count as that")
    tolerance: float = parameter(1e-6, above=0, help="stop when no weight moves by more than this")


@REGISTRY.register(
    "gm",
    Parameters,
    reference="Pillutla, Kakade & Harchaoui, IEEE TSP 2022 (Algorithm 2); kappa: Allouah et al., AISTATS 2023, Table 1",
)
def gm(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Geometric median, by the smoothed Weiszfeld algorithm.

    A(g_1, ..., g_m) = argmin_z sum_i |g_i - z|. From the coordinate-wise median, z <- sum_i w_i g_i with
    w_i proportional to 1/max(|g_i - z|, nu s), s the median distance from the start, until no weight moves by more than
    ``tolerance`` or T steps are done. The steps run on the (m + 1) x (m + 1) Gram matrix of the messages and the start.

    kappa = 4 (1 + f/(m - 2f))^2 with f the declared number of Byzantine workers, which the rule itself does not use.

    Differs from the paper: it names the rule only; start, smoothing and tolerance are choices made here. Pillutla et al.
    smooth by an absolute nu, here nu is relative, so that the rule is equivariant under scaling.
    """
    m = setting.workers
    f = tolerated("gm", None, setting)

    def rule(messages: Tensor) -> Tensor:
        start = middle_mean(messages, (m - 1) // 2)
        offsets = messages - start  # [m, d], so that the start is the origin
        gram = (offsets @ offsets.mT).double()
        weights = _weiszfeld(gram, parameters)
        return start + weights.to(messages.dtype) @ offsets

    return stateless(rule, 4 * (1 + f / (m - 2 * f)) ** 2)


def _weiszfeld(gram: Tensor, parameters: Parameters) -> Tensor:
    """The weights [m] of the geometric median, from the Gram matrix [m, m] of the points around the start."""
    squares = gram.diagonal()
    distances = squares.clamp_min(0).sqrt()
    smallest = (parameters.nu * distances.median()).clamp_min(torch.finfo(gram.dtype).tiny)
    weights = torch.zeros_like(squares)
    for _ in range(parameters.T):
        inverse = 1 / torch.maximum(distances, smallest)
        moved = inverse / inverse.sum()
        step = (moved - weights).abs().max()
        weights = moved
        if not step > parameters.tolerance:
            break
        inner = gram @ weights
        distances = (squares - 2 * inner + weights @ inner).clamp_min(0).sqrt()
    return weights
