"""Geometric median."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    stateless,
    tolerated,
    weighing,
)
from dynabro_cli.components.aggregators._order import middle_mean
from dynabro_cli.core.lazy import np, torch
from dynabro_cli.core.machine import gpu_kernels, native
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.gram import around, gram, radii
from dynabro_cli.core.vectors.means import weighted
from dynabro_cli.core.vectors.operators import opaque

if TYPE_CHECKING:
    from torch import Tensor


STEPS = Path(__file__).with_name("_kernels") / "weiszfeld.cpp"
FEW = 100
"""Number of steps under which the result may depend on the start."""


@dataclass(frozen=True)
class Parameters:
    T: int = parameter(1000, minimum=1, help="most Weiszfeld steps")
    nu: float = parameter(
        1e-6, above=0, help="smoothing: distances under nu times the median distance count as that"
    )
    tolerance: float = parameter(
        1e-6,
        above=0,
        help="stop when a step is under this times the distance to the nearest message",
    )


@REGISTRY.register(
    "gm",
    Parameters,
    reference="Pillutla, Kakade & Harchaoui, IEEE TSP 2022 (Algorithm 2); kappa: Allouah et "
    "al., AISTATS 2023, Table 1",
)
def gm(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Geometric median, by the smoothed Weiszfeld algorithm.

    A(g_1, ..., g_m) = argmin_z sum_i |g_i - z|. The steps are z <- sum_i w_i g_i with w_i
    proportional to 1/max(|g_i - z|, nu s), s the median distance from the start. They end when a
    step is shorter than ``tolerance`` times the (smoothed) distance to the nearest message, or
    after T steps. They use the m x m Gram matrix of the messages. So the messages are read only
    twice, for the matrix and for the mean.

    The start is the mean with weights 1/r_i, r_i the radius of the ball around g_i that holds more
    than half of the messages. If T is under 100, the start may matter; it is then the
    coordinate-wise median. ``gm:T=3`` makes the three steps of RFA (Pillutla et al.);
    ``gm:T=3,nu=0.1`` also smooths them coarsely. RFA starts at the mean, other libraries at 0.

    kappa = 4 (1 + f/(m - 2f))^2 with f the declared number of Byzantine workers, which the rule
    itself does not use.

    Differs from the paper: the paper only names the rule; start, smoothing and tolerance are
    choices made here. Pillutla et al. smooth by an absolute nu; here nu is relative, so that the
    rule is equivariant under scaling.
    """
    m = setting.workers
    f = tolerated("gm", None, setting)

    def steps(gram: Tensor) -> Tensor:
        make = with_gradient if gram.requires_grad else weiszfeld
        return make(gram, parameters.nu, parameters.tolerance, parameters.T)

    def weigh(gram: Tensor) -> Tensor:
        return steps(around(gram, start_of(gram)))

    def from_median(messages: Tensor) -> Tensor:
        median = middle_mean(messages, (m - 1) // 2)
        place = torch.zeros(m + 1, dtype=torch.float64, device=messages.device).index_fill_(
            0, torch.full((), m, device=messages.device), 1
        )
        products = around(gram(torch.cat([messages, median[None]])), place)[:m, :m]
        return weighted(messages, steps(products))

    kappa = 4 * (1 + f / (m - 2 * f)) ** 2
    return stateless(from_median, kappa) if parameters.T < FEW else weighing(weigh, kappa)


def start_of(gram: Tensor) -> Tensor:
    """Return the weights [m] of the mean to start at, from the messages' Gram matrix [m, m]."""
    far = radii(gram).sqrt()
    weights = 1 / far.clamp_min(1e-100 * far.amax() + torch.finfo(far.dtype).tiny * len(far))
    return weights / weights.sum()


def with_gradient(gram: Tensor, nu: float, tolerance: float, most_steps: int) -> Tensor:
    """Compute ``weiszfeld`` with torch's operators, so that the weights have a gradient."""

    def root(squares: Tensor) -> Tensor:
        return torch.where(squares > 0, squares, 1).sqrt() * (squares > 0)  # its gradient at 0 is 0

    squares, weights, inner = gram.diagonal(), torch.zeros_like(gram[0]), torch.zeros_like(gram[0])
    distances = root(squares)
    smallest = (nu * distances.median()).clamp_min(torch.finfo(gram.dtype).tiny * len(gram))
    for _ in range(most_steps):
        smoothed = torch.maximum(distances, smallest)
        moved = 1 / smoothed
        moved = moved / moved.sum()
        products_with_moved = gram @ moved
        square = float(((moved - weights) @ (products_with_moved - inner)).detach())
        weights, inner = moved, products_with_moved
        if not (square > 0 and math.sqrt(square) > tolerance * float(smoothed.min().detach())):
            break
        distances = root(squares - 2 * inner + weights @ inner)
    return weights


def _by_kernel(gram: Tensor, nu: float, tolerance: float, most_steps: int) -> Tensor | None:
    """Compute ``weiszfeld`` with a compiled kernel; return None on a GPU, in single precision, or
    without a C++ compiler.
    """
    steps = None if gram.is_cuda or gram.dtype != torch.float64 else native.library_of(STEPS)
    if steps is None:
        return None
    m, weights = len(gram), gram.new_empty(len(gram))
    products, scratch = gram.detach().contiguous(), gram.new_empty(4, m)
    # of an even number the lower one, as below
    median = products.diagonal().clamp_min(0).sqrt().median()
    smallest = max(nu * float(median), torch.finfo(gram.dtype).tiny * m)
    steps.number("weiszfeld", products, m, smallest, tolerance, most_steps, scratch, weights)
    return weights


@opaque(
    "weiszfeld(Tensor gram, float nu, float tolerance, int most_steps) -> Tensor",
    lambda gram, nu, tolerance, most_steps: gram.new_empty(len(gram)),
    _by_kernel,
)
def weiszfeld(gram: Tensor, nu: float, tolerance: float, most_steps: int) -> Tensor:
    """Return the weights [m] of the geometric median, from the Gram matrix [m, m] of the points
    around the start.

    On a CPU the steps run in NumPy: for such a small matrix, the arithmetic takes less time than
    calls of torch's operators. In a compiled run all steps are one kernel (``_weiszfeld.cpp``). On
    a GPU they are one Triton kernel for at most 64 workers; with more workers, or if Triton does
    not work, they run on the CPU.
    """
    if len(gram) <= gpu_kernels.MOST_ROWS and gpu_kernels.triton_works("gm", gram):
        from dynabro_cli.components.aggregators._kernels.weiszfeld_kernel import weights_of

        return gpu_kernels.checked(
            "gm",
            (gram.shape, gram.dtype, nu, tolerance, most_steps),
            lambda: weights_of(gram, nu, tolerance, most_steps),
            lambda: weiszfeld(gram, nu, tolerance, most_steps),
            bound=lambda: 1e-9 + 4 * tolerance,  # by rounding, one of the two makes a step more
        )
    products = gram.detach().cpu().numpy()
    squares = np.maximum(products.diagonal(), 0)
    distances = np.sqrt(squares)
    median = np.partition(distances, (len(distances) - 1) // 2)[(len(distances) - 1) // 2]
    smallest = max(nu * median, np.finfo(products.dtype).tiny * len(products))
    # inner: of each point with the mean
    weights, inner = np.zeros_like(squares), np.zeros_like(squares)
    for _ in range(most_steps):  # ufuncs, as the methods of arrays take three times as long
        smoothed = np.maximum(distances, smallest)
        moved = 1 / smoothed
        moved /= np.add.reduce(moved)
        products_with_moved = products.dot(moved)
        square = float((moved - weights).dot(products_with_moved - inner))  # |z - z_before|^2
        weights, inner = moved, products_with_moved
        if not (square > 0 and math.sqrt(square) > tolerance * np.minimum.reduce(smoothed)):
            break
        distances = np.sqrt(np.maximum(squares - 2 * inner + weights.dot(inner), 0))
    return torch.from_numpy(weights).to(gram)
