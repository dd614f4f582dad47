"""A little is enough."""

from __future__ import annotations

import doctest
import math

import pytest
import torch
from scipy.stats import norm

from dynabro_cli.components.api import make_attack
from dynabro_cli.components.attacks import alie
from dynabro_cli.components.attacks.alie import alie_z
from tests.tables import each_row


def test_golden() -> None:
    # honest 1, 3, 8: mean 4, deviation sqrt((9 + 1 + 16)/2) = sqrt(13) with ddof = 1; honest 5, 5,
    # 5: no deviation
    own = torch.tensor([[1.0, 5.0], [3.0, 5.0], [8.0, 5.0], [77.0, 77.0]])
    byzantine = torch.tensor([False, False, False, True])
    for z in (2.0, -1.0):
        messages = make_attack(f"alie:z={z}", workers=4)(own, byzantine)
        torch.testing.assert_close(messages[3], torch.tensor([4 - z * math.sqrt(13), 5.0]))


def test_z_follows_the_number_of_byzantine_workers_of_the_round() -> None:
    own = torch.randn(17, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    attack = make_attack("alie", workers=17)
    for f in (8, 1, 15):
        byzantine = torch.arange(17) < f
        honest = own[f:]
        expected = honest.mean(0) - alie_z(17, f) * honest.std(0)
        torch.testing.assert_close(attack(own, byzantine)[0], expected)


def test_z_is_122_in_the_paper() -> None:
    assert alie_z(17, 8) == pytest.approx(1.22, abs=0.005)


@each_row("m", [3, 4, 17, 50])
def test_z_equals_the_formula_of_baruch_et_al(m: int) -> None:
    """While f is a minority, s = floor(m/2 + 1) - f is at least 1, and the formula stands as
    printed.
    """
    for f in range((m + 1) // 2):
        s = math.floor(m / 2 + 1) - f
        assert alie_z(m, f) == pytest.approx(norm.ppf((m - f - s) / (m - f)), abs=1e-12)


@each_row("m", [1, 2, 3, 4, 17, 25])
def test_z_is_finite_for_every_f(m: int) -> None:
    assert all(math.isfinite(alie_z(m, f)) for f in range(m + 1))


def test_z_where_byzantine_workers_are_a_majority() -> None:
    # s = 1: at m = 17, f = 12, Phi^-1(4/5); with two honest workers Phi^-1(1/2) = 0; with fewer
    # none is defined, and 0
    assert alie_z(17, 12) == pytest.approx(0.841621, abs=1e-6)
    assert [alie_z(17, f) for f in (15, 16, 17)] == [0.0, 0.0, 0.0]


def test_one_honest_worker_is_copied() -> None:
    own, byzantine = torch.tensor([[1.0], [5.0], [9.0]]), torch.tensor([True, False, True])
    messages = make_attack("alie:z=3", workers=3)(own, byzantine)
    assert messages.flatten().tolist() == [5.0, 5.0, 5.0]


def test_all_byzantine_take_their_own_statistics_for_the_honest_ones() -> None:
    # 1, 3, 8: mean 4, deviation sqrt(13); a given z, or 0 by the formula
    own, everyone = torch.tensor([[1.0], [3.0], [8.0]]), torch.ones(3, dtype=torch.bool)
    torch.testing.assert_close(
        make_attack("alie:z=1", workers=3)(own, everyone), torch.full((3, 1), 4 - math.sqrt(13))
    )
    torch.testing.assert_close(
        make_attack("alie", workers=3)(own, everyone), torch.full((3, 1), 4.0)
    )


def test_example_in_docstring() -> None:
    results = doctest.testmod(alie)
    assert results.attempted > 0
    assert results.failed == 0
