"""Exponents of made-up data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dynabro_cli.answers.theory.slopes import power_law
from tests.tables import each_row


def test_an_exact_power_law() -> None:
    fit = power_law([1, 2, 4, 8], [3 * x**-0.5 for x in (1, 2, 4, 8)])
    assert fit is not None
    assert (fit.slope, fit.low, fit.high) == (pytest.approx(-0.5),) * 3
    assert (math.exp(fit.intercept), fit.points) == (pytest.approx(3), 4)


def test_a_fit_by_hand() -> None:
    """log x = 0, 1, 2, log y = 0, 2, 1: slope ((-1)(-1) + 0 + (1)(0))/2 = 1/2, mean 1, intercept 1
    - 1/2 = 1/2.

    The rests are -1/2, 1, -1/2: their squares sum to 3/2, with one degree of freedom; s =
    sqrt(3/2/2) = 0.8660, and Student's t(0.975, 1) = 12.7062, so that half the interval is 11.0039.
    """
    fit = power_law([1, math.e, math.e**2], [1, math.e**2, math.e])
    assert fit is not None
    assert (fit.slope, fit.intercept) == (pytest.approx(0.5), pytest.approx(0.5))
    assert (fit.low, fit.high) == (
        pytest.approx(0.5 - 11.0039, abs=1e-4),
        pytest.approx(0.5 + 11.0039, abs=1e-4),
    )


def test_the_interval_is_numpys() -> None:
    generator = np.random.default_rng(0)
    x = generator.uniform(1, 100, 12)
    y = x**0.7 * np.exp(0.3 * generator.standard_normal(12))
    fit, (line, covariance) = (
        power_law(list(x), list(y)),
        np.polyfit(np.log(x), np.log(y), 1, cov=True),
    )
    assert fit is not None
    half = stats.t.ppf(0.975, 10) * math.sqrt(covariance[0, 0])
    assert (fit.slope, fit.low, fit.high) == pytest.approx(
        (line[0], line[0] - half, line[0] + half)
    )


@pytest.mark.thorough
def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    x = np.geomspace(1, 100, 6)
    fits = [
        power_law(list(x), list(x**0.5 * np.exp(0.2 * generator.standard_normal(6))))
        for _ in range(2000)
    ]
    assert np.mean(
        [fit is not None and fit.low <= 0.5 <= fit.high for fit in fits]
    ) == pytest.approx(0.95, abs=0.015)


def test_points_without_a_logarithm_are_left_out() -> None:
    fit = power_law([1, 2, 4, 8, 0], [1, -1, 4, math.nan, 5])
    assert fit is not None
    assert (fit.slope, fit.points) == (pytest.approx(1), 2)
    assert math.isnan(fit.low)
    assert math.isnan(fit.high)


@each_row(("x", "y"), [([], []), ([2], [1]), ([2, 2, 2], [1, 2, 3]), ([1, 2], [0, 3])])
def test_too_few_points(x: list[float], y: list[float]) -> None:
    assert power_law(x, y) is None
