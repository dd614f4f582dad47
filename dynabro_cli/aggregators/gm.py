"""Geometric median."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dynabro_cli.aggregators._api import REGISTRY, Aggregator, AggregatorSetting, stateless, tolerated
from dynabro_cli.aggregators._order import middle_mean
from dynabro_cli.components import parameter


@dataclass(frozen=True)
class Parameters:
    T: int = parameter(1000, minimum=1, help="most Weiszfeld steps")
    nu: float = parameter(1e-6, above=0, help="smoothing: distances under nu times the median distance count as that")
    tolerance: float = parameter(1e-6, above=0, help="stop when a step is under this times the distance to the nearest message")


@REGISTRY.register(
    "gm",
    Parameters,
    reference="Pillutla, Kakade & Harchaoui, IEEE TSP 2022 (Algorithm 2); kappa: Allouah et al., AISTATS 2023, Table 1",
)
def gm(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Geometric median, by the smoothed Weiszfeld algorithm.

    A(g_1, ..., g_m) = argmin_z sum_i |g_i - z|. From the coordinate-wise median, z <- sum_i w_i g_i with
    w_i proportional to 1/max(|g_i - z|, nu s), s the median distance from the start, until a step is shorter than
    ``tolerance`` times the (smoothed) distance to the nearest message, or T steps are done. The steps run on the m x m
    Gram matrix of the messages around the start.

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
    squares = gram.diagonal().nan_to_num(nan=math.inf, posinf=math.inf)
    finite = squares.isfinite()
    gram = torch.where(finite[:, None] & finite, gram, 0)  # a point infinitely far has no weight
    distances = squares.clamp_min(0).sqrt()
    smallest = (parameters.nu * distances.median()).clamp_min(torch.finfo(gram.dtype).tiny)
    weights = torch.zeros_like(squares)
    for _ in range(parameters.T):
        smoothed = torch.maximum(distances, smallest)
        moved = 1 / smoothed / (1 / smoothed).sum()
        change = moved - weights
        weights = moved
        step = (change @ gram @ change).clamp_min(0).sqrt()  # |z - z_before|
        if not step > parameters.tolerance * smoothed.min():
            break
        inner = gram @ weights
        distances = (squares - 2 * inner + weights @ inner).clamp_min(0).sqrt()
    return weights
