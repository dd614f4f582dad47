"""Weiszfeld's compiled steps, against the same steps in NumPy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dynabro_cli.components.aggregators import gm
from dynabro_cli.core.machine import native
from dynabro_cli.core.vectors.gram import around, gram

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    m=st.integers(1, 30),
    seed=st.integers(0, 99),
    equal=st.integers(0, 12),
    far=st.sampled_from([1.0, 1e6, 1e30]),
    nu=st.sampled_from([1e-6, 0.1, 2.0]),
    steps=st.sampled_from([1, 2, 1000]),
)
def test_the_same_weights(m: int, seed: int, equal: int, far: float, nu: float, steps: int) -> None:
    points = torch.randn(m, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    points[: min(equal, m)] = points[0]
    points[-1] *= far
    # of points that are all equal, rounding decides the weights
    assume(m == 1 or far > 1 or equal < m)
    products = gram(points)
    products = around(products, gm.start_of(products))
    found = gm._by_kernel(products, nu, 1e-6, steps)
    assert found is not None
    torch.testing.assert_close(
        found, gm.weiszfeld(products, nu, 1e-6, steps), rtol=1e-6, atol=1e-12
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_median_of_equal_points_is_their_place(seed: int) -> None:
    points = (
        torch.randn(1, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        .expand(10, -1)
        .contiguous()
    )
    products = gram(points)
    for steps in (1, 2, 1000):
        weights = gm._by_kernel(around(products, gm.start_of(products)), 1e-6, 1e-6, steps)
        assert weights is not None
        torch.testing.assert_close(weights @ points, points[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_points_that_are_all_equal_or_no_numbers(value: float) -> None:
    products = torch.full((5, 5), value, dtype=torch.float64)
    found = gm._by_kernel(products, 1e-6, 1e-6, 10)
    assert found is not None
    torch.testing.assert_close(found, gm.weiszfeld(products, 1e-6, 1e-6, 10), equal_nan=True)
