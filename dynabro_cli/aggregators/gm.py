"""Geometric median."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dynabro_cli.aggregators._api import REGISTRY, Aggregator, AggregatorSetting, stateless, tolerated
from dynabro_cli.aggregators._distances import around_median
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

    ``gm:T=3`` makes the three steps of RFA (Pillutla et al.), and ``gm:T=3,nu=0.1`` those with a coarse smoothing, too; from
    the coordinate-wise median, where RFA begins at the mean and others at 0.

    kappa = 4 (1 + f/(m - 2f))^2 with f the declared number of Byzantine workers, which the rule itself does not use.

    Differs from the paper: it names the rule only; start, smoothing and tolerance are choices made here. Pillutla et al.
    smooth by an absolute nu, here nu is relative, so that the rule is equivariant under scaling.
    """
    m = setting.workers
    f = tolerated("gm", None, setting)

    def rule(messages: Tensor) -> Tensor:
        start, offsets = around_median(messages)  # so that the start is the origin
        gram = (offsets @ offsets.mT).double()
        weigh = torch.ops.dynabro.weiszfeld if torch.compiler.is_compiling() else weiszfeld
        weights = weigh(gram, parameters.nu, parameters.tolerance, parameters.T)
        return start + weights.to(messages.dtype) @ offsets

    return stateless(rule, 4 * (1 + f / (m - 2 * f)) ** 2)


def weiszfeld(gram: Tensor, nu: float, tolerance: float, most_steps: int) -> Tensor:
    """The weights [m] of the geometric median, from the Gram matrix [m, m] of the points around the start.

    The steps run on the CPU, wherever the messages are: a step on so small a matrix is shorter than its launch elsewhere.
    """
    device, gram = gram.device, gram.cpu()
    squares = gram.diagonal().nan_to_num(nan=math.inf, posinf=math.inf)
    finite = squares.isfinite()
    gram = torch.where(finite[:, None] & finite, gram, 0)  # a point infinitely far has no weight
    distances = squares.clamp_min(0).sqrt()
    smallest = (nu * distances.median()).clamp_min(torch.finfo(gram.dtype).tiny)
    weights = torch.zeros_like(squares)
    for _ in range(most_steps):
        smoothed = torch.maximum(distances, smallest)
        moved = 1 / smoothed / (1 / smoothed).sum()
        change = moved - weights
        weights = moved
        step = (change @ gram @ change).clamp_min(0).sqrt()  # |z - z_before|
        if not step > tolerance * smoothed.min():
            break
        inner = gram @ weights
        distances = (squares - 2 * inner + weights @ inner).clamp_min(0).sqrt()
    return weights.to(device)


# An operator of its own: the number of steps is seen only while they run, which no compiled function can contain.
_LIBRARY = torch.library.Library("dynabro", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("weiszfeld(Tensor gram, float nu, float tolerance, int most_steps) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("weiszfeld", weiszfeld, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


@torch.library.register_fake("dynabro::weiszfeld", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _weights_like(gram: Tensor, nu: float, tolerance: float, most_steps: int) -> Tensor:
    """What the compiler knows of the operator's result."""
    return gram.new_empty(gram.shape[0])
