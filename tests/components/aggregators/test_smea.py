"""Smallest maximum eigenvalue averaging, against the covariance matrices of all subsets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dynabro_cli.components.aggregators import smea
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError


def test_golden() -> None:
    # on a line the largest eigenvalue is the variance: {0, 1, 3, 4} has 10/4, all others more than
    # 100
    messages = torch.tensor([[0.0], [1.0], [3.0], [4.0], [30.0]])
    assert make_aggregator("smea", workers=5, byzantine=1)(messages).tolist() == [2.0]


def test_golden_two_dimensions_and_a_tie() -> None:
    # A (0, 0), B (4, 0), C (2, 3), D (2, -3), three of each. ABC: mean (2, 1), variances 8/3 and 2,
    # covariance 0; ABD is its mirror image; ACD: mean (4/3, 0), variances 8/9 and 6; BCD its mirror
    # image. ABC and ABD tie: the first it is.
    messages = torch.tensor([[0.0, 0.0], [4.0, 0.0], [2.0, 3.0], [2.0, -3.0]])
    rule = make_aggregator("smea", workers=4, byzantine=1)
    torch.testing.assert_close(rule(messages), torch.tensor([2.0, 1.0]))
    torch.testing.assert_close(rule(messages[[0, 1, 3, 2]]), torch.tensor([2.0, -1.0]))


def test_golden_it_is_not_the_total_variance_that_counts() -> None:
    # A (-4, 4), B (-4, -3), C (2, -1), D (-4, 1), three of each. ABD, on a line, has the variance
    # 26/3 - 4/9 = 8.2 in all; BCD 8 along the one axis and 8/3 along the other, covariance 0: more
    # in all, but less in any direction. (ABC has 26/3 along the second axis, ACD 8 along the first
    # and a covariance.)
    messages = torch.tensor([[-4.0, 4.0], [-4.0, -3.0], [2.0, -1.0], [-4.0, 1.0]])
    torch.testing.assert_close(
        make_aggregator("smea", workers=4, byzantine=1)(messages), torch.tensor([-2.0, -1.0])
    )


@pytest.mark.parametrize("parts", [7, 4096])
@pytest.mark.parametrize(("m", "f"), [(4, 0), (5, 2), (8, 3), (9, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_equals_a_loop(
    m: int, f: int, seed: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smea, "AT_A_TIME", parts)
    messages = torch.randn(m, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def largest(subset: tuple[int, ...]) -> float:
        covariance = np.cov(messages[list(subset)].numpy().T, bias=True)
        return float(np.linalg.eigvalsh(covariance)[-1])

    best = min(itertools.combinations(range(m), m - f), key=largest)
    torch.testing.assert_close(
        make_aggregator("smea", workers=m, byzantine=f)(messages), messages[list(best)].mean(0)
    )


def test_kappa() -> None:
    # 4f/(m - f) (1 + f/(m - 2f))^2 at m = 5, f = 1: 4/4 (4/3)^2 = 16/9; of fewer than are declared
    # nothing is proved
    assert make_aggregator("smea", workers=5, byzantine=1).kappa == pytest.approx(16 / 9)
    assert make_aggregator("smea:f=1", workers=5, byzantine=2).kappa is None


def test_sizes_that_would_not_end_are_refused() -> None:
    make_aggregator("smea", workers=17, byzantine=8)
    # C(20, 9) = 167960, C(20, 7) = 77520; C(19, 9) = 92378
    with pytest.raises(
        SpecError, match=r"167960 subsets of 11, .* up to 100000. Try: 'smea:f=7', or 19 workers"
    ):
        make_aggregator("smea", workers=20, byzantine=9)
    with pytest.raises(SpecError, match="'smea': f=2 is not legal with 4 workers"):
        make_aggregator("smea", workers=4, byzantine=2)
