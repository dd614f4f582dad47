"""Geometric median, against geometry, an independent minimiser, and random perturbations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row


def total_distance(point: np.ndarray, messages: np.ndarray) -> float:
    """The sum of distances of which the geometric median is the minimiser."""
    return float(np.linalg.norm(messages - point, axis=1).sum())


def aggregate(messages: Tensor, text: str = "gm") -> Tensor:
    return make_aggregator(text, workers=len(messages), byzantine=1)(messages)


def normal(m: int, d: int, seed: int) -> Tensor:
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_golden_quadrilateral() -> None:
    # The geometric median of four points in convex position is where the diagonals cross: (0,
    # 0)-(18, 9) is y = x/2 and (12, 0)-(0, 12) is x + y = 12, so x = 8, y = 4. (The start, the
    # coordinate-wise median, is (6, 4.5).)
    messages = torch.tensor(
        [[0.0, 0.0], [12.0, 0.0], [18.0, 9.0], [0.0, 12.0]], dtype=torch.float64
    )
    torch.testing.assert_close(
        aggregate(messages), torch.tensor([8.0, 4.0]).double(), atol=1e-4, rtol=0
    )


def test_golden_minimiser_at_a_message() -> None:
    # The unit vectors from (0, 0) to (10, 1) and (-10, 1) add up to (0, 2/sqrt(101)), shorter than
    # 1: (0, 0) it is.
    messages = torch.tensor([[10.0, 1.0], [0.0, 0.0], [-10.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(aggregate(messages), torch.zeros(2).double(), atol=1e-4, rtol=0)


def test_golden_start_at_a_message_that_is_not_the_minimiser() -> None:
    # The coordinate-wise median of (0, 0), (-1, -10), (10, 1) is (0, 0), where Weiszfeld's steps
    # can get stuck. By symmetry the minimiser is (t, -t): the derivative of sqrt(2) t + 2 sqrt((t +
    # 1)^2 + (10 - t)^2) is zero where 6 t^2 - 54 t + 61 = 0, at t = (27 - 11 sqrt(3))/6 = 1.3246.
    messages = torch.tensor([[0.0, 0.0], [-1.0, -10.0], [10.0, 1.0]], dtype=torch.float64)
    t = (27 - 11 * math.sqrt(3)) / 6
    torch.testing.assert_close(
        aggregate(messages), torch.tensor([t, -t]).double(), atol=1e-3, rtol=0
    )


def test_golden_one_step() -> None:
    # From the coordinate-wise median (0, 0) of (0, 4), (3, 0), (-3, 0), at distances 4, 3, 3:
    # weights 3/11, 4/11, 4/11.
    messages = torch.tensor([[0.0, 4.0], [3.0, 0.0], [-3.0, 0.0]])
    torch.testing.assert_close(aggregate(messages, "gm:T=1"), torch.tensor([0.0, 12 / 11]))


@pytest.mark.parametrize("nu", [1e-6, 0.1, 1.5])
def test_few_steps_are_those_of_a_loop(nu: float) -> None:
    """The steps of RFA, from the coordinate-wise median, with an absolute smoothing of nu times the
    median distance.
    """
    messages = normal(9, 4, seed=3)
    z = messages.median(0).values
    smallest = nu * (messages - z).norm(dim=1).median()
    for steps in (1, 2, 3):
        weights = 1 / (messages - z).norm(dim=1).clamp_min(smallest)
        z = weights @ messages / weights.sum()
        torch.testing.assert_close(aggregate(messages, f"gm:T={steps},nu={nu},tolerance=1e-15"), z)


def test_large_nu_makes_it_the_mean() -> None:
    # every distance counts as nu times the median distance, so all weights are equal
    messages = normal(7, 3, seed=0)
    torch.testing.assert_close(aggregate(messages, "gm:nu=1e9"), messages.mean(0))


@each_row("seed", range(2))
@each_row(("m", "d"), [(4, 2), (5, 3), (9, 2), (12, 4)])
def test_equals_an_independent_minimiser(m: int, d: int, seed: int) -> None:
    messages = normal(m, d, seed)
    if seed % 2:
        messages[0] *= 100
    points = messages.numpy()
    options = {"xatol": 1e-9, "fatol": 1e-13, "maxiter": 10_000}
    best = minimize(total_distance, points.mean(0), (points,), "Nelder-Mead", options=options)
    lowest = min(best.fun, *(total_distance(point, points) for point in points))
    ours = total_distance(aggregate(messages, "gm:T=20000,tolerance=1e-13").numpy(), points)
    assert ours == pytest.approx(lowest, rel=1e-6)  # nu = 1e-6 smooths by about as much


@pytest.mark.parametrize(("m", "d"), [(5, 8), (17, 20), (25, 100)])
def test_no_perturbation_is_better(m: int, d: int) -> None:
    messages = normal(m, d, seed=m)
    messages[: m // 3] += 5
    point, points = aggregate(messages).numpy(), messages.numpy()
    reached = total_distance(point, points)
    generator = np.random.default_rng(m)
    for size in (0.01, 0.1, 1.0, 10.0):
        for direction in generator.normal(size=(25, d)):
            assert reached <= total_distance(
                point + size * direction / np.linalg.norm(direction), points
            )


def test_a_majority_at_one_point_wins() -> None:
    messages = torch.cat(
        [torch.full((5, 3), 2.0), torch.tensor([[1e6], [-3.0], [0.5], [40.0]]).expand(4, 3)]
    )
    torch.testing.assert_close(aggregate(messages), torch.full((3,), 2.0), atol=0, rtol=0)


@each_row("size", [1e6, 1e18, 1e20, 3e38])
def test_far_messages_on_opposite_sides_cancel(size: float) -> None:
    # each pulls with a unit vector, however far it is, also where its square is too large for
    # single precision
    messages = normal(7, 30, seed=1).float()
    far = torch.full((1, 30), size)
    torch.testing.assert_close(
        aggregate(torch.cat([far, messages, -far])), aggregate(messages), atol=1e-3, rtol=0
    )


def test_kappa() -> None:
    # 4 (1 + f/(m - 2f))^2 at m = 7, f = 2: 4 (1 + 2/3)^2 = 100/9
    assert make_aggregator("gm", workers=7, byzantine=2).kappa == pytest.approx(100 / 9)


def test_legal_ranges() -> None:
    make_aggregator("gm", workers=5, byzantine=2)
    with pytest.raises(SpecError, match="'gm': f=2 is not legal with 4 workers"):
        make_aggregator("gm", workers=4, byzantine=2)
    with pytest.raises(SpecError) as error:
        make_aggregator("gm:T=0,nu=0,tolerance=-1", workers=5, byzantine=1)
    assert [line.split(";")[1] for line in error.value.problems] == [
        " T must be a whole number >= 1",
        " nu must be a number > 0",
        " tolerance must be a number > 0",
    ]
