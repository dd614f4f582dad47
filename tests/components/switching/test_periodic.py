"""Periodic switching."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chi2

from dynabro_cli.components.api import make_switching
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row


@each_row(("m", "f", "period"), [(17, 8, 1), (17, 8, 10), (5, 0, 3), (4, 4, 3), (1, 1, 3)])
def test_size_is_f_and_sets_last_for_k_ticks(period: int, m: int, f: int) -> None:
    switching = make_switching(f"periodic:K={period}", workers=m, byzantine=f, seed=1)
    masks = torch.stack([switching.mask(t) for t in range(6 * period)]).view(6, period, m)
    assert bool((masks.sum(2) == f).all())
    assert bool((masks == masks[:, :1]).all())


def test_successive_sets_differ() -> None:
    """Each of 999 switches keeps the set with probability 1/C(17, 8) = 1/24310; 8 or more do with
    under 1e-15.
    """
    switching = make_switching("periodic:K=2", workers=17, byzantine=8)
    masks = torch.stack([switching.mask(2 * epoch) for epoch in range(1000)])
    assert int((masks[1:] == masks[:-1]).all(1).sum()) < 8


@pytest.mark.thorough
@pytest.mark.parametrize(("m", "f"), [(17, 8), (6, 1)])
def test_uniform_over_workers(m: int, f: int) -> None:
    """A chi-square test, wrong with probability 1e-6 for a uniform draw.

    The counts of n draws of f out of m have covariance n q (1 - q) m/(m - 1) (I - 11'/m), q = f/m,
    so that the squared deviations over n q (1 - q) m/(m - 1) add up to a chi-square variable with m
    - 1 degrees of freedom.
    """
    draws, q = 4000, f / m
    switching = make_switching("periodic:K=1", workers=m, byzantine=f, seed=0)
    counts = torch.stack([switching.mask(t) for t in range(draws)]).double().sum(0)
    statistic = float((counts - draws * q).square().sum()) / (draws * q * (1 - q) * m / (m - 1))
    assert statistic < chi2.isf(1e-6, m - 1)


def test_period_is_needed_and_positive() -> None:
    with pytest.raises(SpecError, match=r"'periodic' needs K=. Try: 'periodic:K=VALUE'"):
        make_switching("periodic", workers=3, byzantine=1)
    with pytest.raises(SpecError, match="K=0 is not legal; K must be a whole number >= 1"):
        make_switching("periodic:K=0", workers=3, byzantine=1)
