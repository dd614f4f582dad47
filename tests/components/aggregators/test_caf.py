"""Covariance-bound agnostic filter, against a loop over covariance matrices."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from dynabro_cli.components.aggregators.caf import weigh
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.vectors.gram import gram
from tests.tables import each_row

DTYPES = torch.float32, torch.float64


def test_golden() -> None:
    # 0, 3, 12 with f = 1. mu = 5, lambda = (25 + 4 + 49)/3 = 26, weights 1 - 25/49 = 24/49, 1 -
    # 4/49 = 45/49 and 0. Their sum is over m - 2f = 1: mu = 3 * 45/69 = 45/23, lambda = 24 * 45 *
    # 9/69^2 = 2.04; then 0 loses all its weight, and 45/49 and less is left. The smaller lambda
    # came with 45/23.
    messages = torch.tensor([[0.0], [3.0], [12.0]], dtype=torch.float64)
    torch.testing.assert_close(
        make_aggregator("caf", workers=3, byzantine=1)(messages), torch.tensor([45 / 23]).double()
    )


def test_golden_messages_that_agree_are_their_own_mean() -> None:
    # mu = (4, 0), lambda = 64, all along the first axis: the last loses its weight, and the others
    # keep 1 - 4^2/16^2
    messages = torch.tensor([[0.0, 0.0]] * 4 + [[20.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(
        make_aggregator("caf", workers=5, byzantine=1)(messages), torch.zeros(2).double()
    )


def test_golden_messages_that_tie_lose_all_their_weight() -> None:
    # 0, 0, 3, 4, 9, 9 around their mean, 25/6: 9 and 9 tie for the farthest, (29/6)^2; then weights
    # are 1 - (25/29)^2 = 216/841 twice, 1 - (7/29)^2 = 792/841 and 1 - (1/29)^2 = 840/841, and the
    # sum of them is 2064/841, over m - 2f = 2
    messages = torch.tensor([0.0, 0, 3, 4, 9, 9], dtype=torch.float64)[:, None]
    weights = weigh(gram(messages), 2)
    assert weights[4:].tolist() == [0.0, 0.0]


def by_fractions(column: list[int], f: int) -> float:
    """Algorithm 2 in exact arithmetic, in one dimension."""
    points, weights = [Fraction(value) for value in column], [Fraction(1)] * len(column)
    best, least = Fraction(0), None
    while sum(weights) > len(points) - 2 * f:
        total = sum(weights)
        mean = sum(weight * point for weight, point in zip(weights, points, strict=True)) / total
        scores = [(point - mean) ** 2 for point in points]
        spread = sum(weight * score for weight, score in zip(weights, scores, strict=True)) / total
        if least is None or spread < least:
            best, least = mean, spread
        farthest = max(score for score, weight in zip(scores, weights, strict=True) if weight)
        if not farthest:
            break
        weights = [
            weight * max(Fraction(0), 1 - score / farthest)
            for weight, score in zip(weights, scores, strict=True)
        ]
    return float(best)


@each_row("dtype", [torch.float32, torch.float64])
@each_row("seed", range(4))
def test_equals_exact_arithmetic_where_messages_tie(seed: int, dtype: torch.dtype) -> None:
    generator = np.random.default_rng(seed)
    columns = [[-9, -4, -7, -1, -2, -9, -3]] if not seed else []
    columns += [
        generator.integers(-9, 10, size=generator.integers(3, 10)).tolist() for _ in range(10)
    ]
    for column in columns:
        f = (len(column) - 1) // 2
        found = make_aggregator("caf", workers=len(column), byzantine=f)(
            torch.tensor(column, dtype=dtype)[:, None]
        )
        assert found.item() == pytest.approx(by_fractions(column, f), rel=1e-5, abs=1e-5)


@each_row("d", [100, 5000])
@each_row("seed", range(3))
def test_equal_vectors_far_away_are_filtered_in_single_precision_as_in_double(
    seed: int, d: int
) -> None:
    messages = torch.randn(17, d, generator=torch.Generator().manual_seed(seed))
    messages[9:] = 1000 * messages[9] / messages[9].norm()
    single, double = (
        make_aggregator("caf", workers=17, byzantine=8)(messages.to(dtype)) for dtype in DTYPES
    )
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-5)


def by_covariance(points: np.ndarray, f: int) -> np.ndarray:
    m = len(points)
    weights, best, least = np.ones(m), points.mean(0), np.inf
    while weights.sum() > m - 2 * f:
        mean = weights @ points / weights.sum()
        offsets = points - mean
        values, vectors = np.linalg.eigh((weights[:, None] * offsets).T @ offsets / weights.sum())
        if values[-1] < least:
            best, least = mean, values[-1]
        tau = (offsets @ vectors[:, -1]) ** 2
        weights = np.maximum(weights * (1 - tau / tau[weights > 1e-12].max()), 0)
        weights[weights < 1e-12] = 0
    return best


@each_row(("m", "f"), [(5, 1), (7, 3), (10, 3), (17, 8)])
@each_row("seed", range(2))
def test_equals_a_loop(m: int, f: int, seed: int) -> None:
    messages = torch.randn(m, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    messages[:f] += 2
    expected = torch.from_numpy(by_covariance(messages.numpy(), f))
    torch.testing.assert_close(make_aggregator("caf", workers=m, byzantine=f)(messages), expected)


@pytest.mark.parametrize("size", [1e3, 1e10, 1e30])
def test_far_messages_have_no_weight(size: float) -> None:
    messages = torch.randn(9, 20, generator=torch.Generator().manual_seed(0))
    messages[2], messages[6] = size, -size / 3
    aggregate = make_aggregator("caf", workers=9, byzantine=2)(messages)
    assert float((aggregate - messages[[0, 1, 3, 4, 5, 7, 8]].mean(0)).norm()) < 4


def test_numbers_whose_squares_are_too_large_raise_nothing() -> None:
    messages = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for size in (1e30, 1e100, 1e150, 1e200, 1e300):
        messages[1] = size
        for rule in ("caf", "smea", "dnc"):
            assert bool((make_aggregator(rule, workers=5, byzantine=1)(messages).abs() < 5).all())


def test_without_byzantine_workers_it_is_the_mean() -> None:
    messages = torch.tensor([[0.0, 4.0], [3.0, 2.0]])
    assert make_aggregator("caf", workers=2, byzantine=0)(messages).tolist() == [1.5, 3.0]


def test_no_kappa_and_legal_range_of_f() -> None:
    assert make_aggregator("caf", workers=5, byzantine=1).kappa is None
    with pytest.raises(SpecError, match="'caf': f=2 is not legal with 4 workers"):
        make_aggregator("caf", workers=4, byzantine=2)
