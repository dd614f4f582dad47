"""Bernoulli switching."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.stats import binomtest, chi2
from torch import Tensor

from dynabro_cli.components.api import make_switching
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row


def schedule(text: str, m: int, ticks: int, seed: int = 0) -> Tensor:
    """The masks of the first ticks: [ticks, m]."""
    switching = make_switching(f"bernoulli:{text}", workers=m, byzantine=0, seed=seed)
    return torch.stack([switching.mask(t) for t in range(ticks)])


@each_row(
    ("delta_max", "m", "most"),
    [(0.72, 25, 18), (0.48, 25, 12), (0.5, 17, 8), (0.29, 100, 29), (0, 9, 0), (1, 9, 9)],
)
def test_never_more_than_the_cap_and_the_cap_is_reached(
    delta_max: float, m: int, most: int
) -> None:
    # 0.29 * 100 is 29, though 28.999999999999996 in binary fractions
    counts = schedule(f"p=0.5,D=7,delta_max={delta_max}", m, 300).sum(1)
    assert int(counts.max()) == most


@pytest.mark.parametrize("cap", [1, 0.4])
def test_stints_last_multiples_of_d(cap: float) -> None:
    """A worker whose D ticks are over draws again at once: stints of 2D, 3D ... occur, and nothing
    in between.
    """
    masks = schedule(f"p=0.2,D=4,delta_max={cap}", 20, 500)
    lengths = set()
    for worker in masks.T.tolist():
        runs = [(turned, len(list(run))) for turned, run in itertools.groupby(worker)]
        # the last may be cut short by the end
        lengths |= {length for turned, length in runs[:-1] if turned}
    assert {length % 4 for length in lengths} == {0}
    assert {4, 8} <= lengths


@each_row(("p", "duration"), [(0.01, 10), (0.1, 5), (0.05, 1), (0.5, 3)])
def test_count_follows_the_process_where_the_cap_does_not_bind(p: float, duration: int) -> None:
    """An exact binomial test at each of five ticks, wrong with probability 1e-6 in all.

    Workers are independent here. With r_t the probability that a worker draws at tick t, r_0 = 1
    and r_t = (1 - p) r_{t-1} + p r_{t-D}, it is honest at t with probability (1 - p) r_t. In the
    long run a draw takes D ticks with probability p and one otherwise, so that the worker is
    Byzantine for pD/(pD + 1 - p) of the time.
    """
    m, ticks = 20_000, 201
    draws = [1.0]
    for t in range(1, ticks):
        draws.append((1 - p) * draws[t - 1] + (p * draws[t - duration] if t >= duration else 0))
    shares = [1 - (1 - p) * r for r in draws]
    assert shares[-1] == pytest.approx(p * duration / (p * duration + 1 - p), rel=1e-3)
    switching = make_switching(f"bernoulli:p={p},D={duration},delta_max=1", workers=m, byzantine=0)
    for t in (0, 1, duration, 50, 200):
        assert binomtest(int(switching.mask(t).sum()), m, shares[t]).pvalue > 1e-6 / 5


def test_if_all_draw_a_draw_of_1_restarts_the_ticks() -> None:
    """A worker is then Byzantine at t if one of its last D draws is 1: with probability 1 - (1 -
    p)^min(D, t + 1).
    """
    m, p, duration = 20_000, 0.05, 10
    switching = make_switching(
        f"bernoulli:p={p},D={duration},delta_max=1,draws=all", workers=m, byzantine=0
    )
    for t in (0, 5, 9, 50, 200):
        assert (
            binomtest(int(switching.mask(t).sum()), m, 1 - (1 - p) ** min(duration, t + 1)).pvalue
            > 1e-6 / 5
        )
    capped = schedule("p=0.5,D=7,delta_max=0.48,draws=all", 25, 300)
    assert int(capped.sum(1).max()) == 12


def test_where_too_many_turn_a_uniform_choice_of_them_does() -> None:
    """p = 1, D = 1: each tick a uniform third of the workers. The chi-square test of periodic,
    wrong with 1e-6.
    """
    m, most, ticks = 12, 4, 3000
    masks = schedule(f"p=1,D=1,delta_max={most / m}", m, ticks)
    assert bool((masks.sum(1) == most).all())
    q = most / m
    deviations = masks.double().sum(0) - ticks * q
    assert float(deviations.square().sum()) / (ticks * q * (1 - q) * m / (m - 1)) < chi2.isf(
        1e-6, m - 1
    )


def test_p_zero_and_p_one() -> None:
    assert not bool(schedule("p=0,D=3,delta_max=1", 9, 50).any())
    assert bool(schedule("p=1,D=3,delta_max=1", 9, 50).all())


def test_declared_number_plays_no_part() -> None:
    masks = [
        make_switching("bernoulli:p=0.3,D=2,delta_max=0.6", workers=9, byzantine=f).mask(5)
        for f in (0, 4)
    ]
    assert torch.equal(*masks)


def test_legal_ranges() -> None:
    with pytest.raises(SpecError) as error:
        make_switching("bernoulli:p=1.5,D=0,delta_max=-0.1", workers=9, byzantine=0)
    assert [line.split(";")[1] for line in error.value.problems] == [
        " p must be a number >= 0 and <= 1",
        " D must be a whole number >= 1",
        " delta_max must be a number >= 0 and <= 1",
    ]
