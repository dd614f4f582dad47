"""The server's update: learning rate, its drops, AdaGrad-Norm, weight decay, and the projection
onto K.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from dynabro_cli import RunSpec
from dynabro_cli.experiment.complete import CompleteSpec
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.round.update import Step
from tests.simulation.reference import START, A, gap, noise, quadratic

PLAIN = {"method": "sgd", "attack": "none", "aggregator": "mean", "workers": 3, "byzantine": 1}


def complete(**given: Any) -> CompleteSpec:
    return resolve(RunSpec(task="quadratic", **given)).spec


def gradient(round_: int, x: np.ndarray) -> np.ndarray:
    return A @ x + noise(3, round_, 0).mean(0)


def test_learning_rate_drops_where_the_fraction_of_the_budget_is_reached() -> None:
    outcome = quadratic(**PLAIN, learning_rate=0.1, lr_drop="0.8:0.5,0.5:0.1", budget=20)
    rates = [0.1] * 10 + [0.1 * 0.1] * 6 + [0.1 * 0.1 * 0.5] * 4
    assert_allclose([item.learning_rate for item in outcome.rounds], rates, rtol=1e-12)
    x, gaps = START, [gap(START)]
    for round_, rate in enumerate(rates):
        x = x - rate * gradient(round_, x)
        gaps.append(gap(x))
    assert_allclose(outcome.gaps, gaps, rtol=1e-9)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_adagrad_norm_of_gradients_whose_squares_are_no_numbers(size: float) -> None:
    spec = complete(**PLAIN, learning_rate=1.0, lr_rule="adagrad-norm", budget=9)
    step, x = Step(spec, torch.zeros(2)), torch.zeros(2)
    rates = [float(step.update(x, size * torch.tensor([3.0, 4.0]), step.rate(0))) for _ in range(2)]
    assert rates == pytest.approx([1 / (5 * size), 1 / (5 * size * 2**0.5)], rel=1e-6)
    assert x.tolist() == pytest.approx([-0.6 * (1 + 0.5**0.5), -0.8 * (1 + 0.5**0.5)], rel=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fraction", "budget", "first"), [(0.1, 30, 3), (0.29, 100, 29), (0.55, 100, 55), (0.25, 10, 3)]
)
def test_drops_at_decimal_fractions(fraction: float, budget: int, first: int) -> None:
    # 0.29 x 100 is 28.999999999999996 in binary, and 0.55 x 100 is 55.00000000000001
    rates = [
        item.learning_rate
        for item in quadratic(
            **PLAIN, learning_rate=1e-3, lr_drop=f"{fraction}:0.1", budget=budget
        ).rounds
    ]
    assert next(index for index, rate in enumerate(rates) if rate < 1e-3) == first


def test_drops_count_computations_and_not_rounds() -> None:
    rounds = quadratic(method="dynabro", learning_rate=0.01, lr_drop="0.5:0.1", budget=200).rounds
    for item in rounds:
        before = item.budget - item.cost
        assert item.learning_rate == pytest.approx(0.01 if before < 100 else 0.001, rel=1e-12)
    assert len({item.learning_rate for item in rounds}) == 2


def test_weight_decay_is_added_to_the_aggregate() -> None:
    outcome = quadratic(**PLAIN, learning_rate=0.1, weight_decay=0.7, budget=20)
    x, gaps, norms = START, [gap(START)], []
    for round_ in range(20):
        direction = gradient(round_, x)
        norms.append(np.linalg.norm(direction))
        x = x - 0.1 * (direction + 0.7 * x)
        gaps.append(gap(x))
    assert_allclose(outcome.gaps, gaps, rtol=1e-9)
    assert_allclose(outcome.norms, norms, rtol=1e-9)  # |g_t| is the norm of only the aggregate


def test_adagrad_norm() -> None:
    """eta_t = eta_0/sqrt(sum_{s <= t} |g_s|^2), equation 5: the current round's gradient counts."""
    outcome = quadratic(**PLAIN, learning_rate=0.8, lr_rule="adagrad-norm", budget=25)
    x, squares, gaps, rates = START, 0.0, [gap(START)], []
    for round_ in range(25):
        direction = gradient(round_, x)
        squares += direction @ direction
        rates.append(0.8 / np.sqrt(squares))
        x = x - rates[-1] * direction
        gaps.append(gap(x))
    assert_allclose([item.learning_rate for item in outcome.rounds], rates, rtol=1e-9)
    assert_allclose(outcome.gaps, gaps, rtol=1e-9)


def test_adagrad_norm_with_nothing_to_go_by() -> None:
    """A gradient of zero leaves x where it is, and 0/0 out of the model."""
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    step = Step(complete(learning_rate=0.5, lr_rule="adagrad-norm"), x)
    assert float(step.update(x, torch.zeros(2, dtype=torch.float64), step.rate(0))) == 0.0
    assert x.tolist() == [1.0, 2.0]
    step.update(x, torch.tensor([3.0, -4.0], dtype=torch.float64), step.rate(0))
    assert_allclose(x.numpy(), [1 - 0.5 * 3 / 5, 2 + 0.5 * 4 / 5])


def test_the_aggregate_is_not_changed_by_the_step() -> None:
    x, direction = torch.ones(2), torch.ones(2)
    step = Step(complete(learning_rate=0.5, weight_decay=0.5, budget=10), x)
    step.update(x, direction, step.rate(0))
    assert x.tolist() == [0.25, 0.25]
    assert direction.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("method", "rate"), [("sgd", 0.9), ("momentum", 60.0)])
def test_projection_onto_the_ball(method: str, rate: float) -> None:
    """x_1 and every x_t lie in the ball of radius 2; momentum and |g_t| know nothing of it."""
    outcome = quadratic(
        **PLAIN | {"method": method},
        task="quadratic:radius=2,start=30:-30",
        learning_rate=rate,
        budget=20,
    )
    x = 2 * START / np.linalg.norm(START)
    gaps, outside, kept = [gap(x)], 0, np.zeros(2)
    for round_ in range(20):
        direction = gradient(round_, x)
        if method == "momentum":
            kept = direction = 0.9 * kept + 0.1 * direction
        x = x - rate * direction
        outside += np.linalg.norm(x) > 2
        x = x * min(1, 2 / np.linalg.norm(x))
        gaps.append(gap(x))
    assert_allclose(outcome.gaps, gaps, rtol=1e-9)
    assert outside > 0
