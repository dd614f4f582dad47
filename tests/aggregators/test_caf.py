"""Covariance-bound agnostic filter, against a loop over covariance matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynabro_cli.api import make_aggregator
from dynabro_cli.errors import SpecError


def test_golden() -> None:
    # 0, 3, 12 with f = 1. mu = 5, lambda = (25 + 4 + 49)/3 = 26, weights 1 - 25/49 = 24/49, 1 - 4/49 = 45/49 and 0.
    # Their sum is over m - 2f = 1: mu = 3 * 45/69 = 45/23, lambda = 24 * 45 * 9/69^2 = 2.04; then 0 loses all its weight,
    # and 45/49 and less is left. The smaller lambda came with 45/23.
    messages = torch.tensor([[0.0], [3.0], [12.0]], dtype=torch.float64)
    torch.testing.assert_close(make_aggregator("caf", workers=3, byzantine=1)(messages), torch.tensor([45 / 23]).double())


def test_golden_messages_that_agree_are_their_own_mean() -> None:
    # mu = (4, 0), lambda = 64, all along the first axis: the last loses its weight, and the others keep 1 - 4^2/16^2
    messages = torch.tensor([[0.0, 0.0]] * 4 + [[20.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(make_aggregator("caf", workers=5, byzantine=1)(messages), torch.zeros(2).double())


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


@pytest.mark.parametrize(("m", "f"), [(5, 1), (7, 3), (10, 3), (17, 8)])
@pytest.mark.parametrize("seed", range(5))
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
