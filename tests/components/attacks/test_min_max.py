"""Min-Max."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.api import make_attack
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row

KINDS = ["std", "unit", "sign"]


def direction(honest: Tensor, kind: str) -> Tensor:
    return -{"std": honest.std(0), "unit": honest.mean(0), "sign": honest.mean(0).sign()}[kind]


def by_search(honest: Tensor, kind: str) -> Tensor:
    """The paper's definition, by bisection over pairs in a loop."""
    mean, along = honest.mean(0), direction(honest, kind)
    limit = max(float((a - b).norm()) for a in honest for b in honest)
    low, high = 0.0, 1e6
    for _ in range(200):
        gamma = (low + high) / 2
        fits = max(float((mean + gamma * along - b).norm()) for b in honest) <= limit
        low, high = (gamma, high) if fits else (low, gamma)
    return mean + low * along


def test_golden() -> None:
    # honest 0, 2 and 4 on a line: mean 2, largest distance 4; at -std the attack may go down to 4 -
    # 4 = 0
    own, byzantine = (
        torch.tensor([[0.0], [99.0], [2.0], [4.0]]),
        torch.tensor([False, True, False, False]),
    )
    for kind in KINDS:
        torch.testing.assert_close(
            make_attack(f"min-max:perturbation={kind}", workers=4)(own, byzantine)[1],
            torch.zeros(1),
        )
    # honest (1, 1), (1, -1): mean (1, 0), distance 2; along -(1, 0) until (1 - x)^2 + 1 = 4: x = 1
    # - sqrt 3; along -std, (0, -1), until the upper one is 2 away: (1, -1)
    own, byzantine = (
        torch.tensor([[1.0, 1.0], [1.0, -1.0], [9.0, 9.0]]),
        torch.tensor([False, False, True]),
    )
    for kind in ("unit", "sign"):
        sent = make_attack(f"min-max:perturbation={kind}", workers=3)(own, byzantine)[2]
        torch.testing.assert_close(sent, torch.tensor([1 - math.sqrt(3), 0.0]))
    torch.testing.assert_close(
        make_attack("min-max", workers=3)(own, byzantine)[2], torch.tensor([1.0, -1.0])
    )


@each_row(
    ("kind", "m", "f"),
    [
        *((kind, 9, 4) for kind in KINDS),
        *(("std", m, f) for m, f in [(9, 0), (9, 1), (9, 7), (4, 2)]),
    ],
)
def test_is_the_search(kind: str, m: int, f: int) -> None:
    own = (
        torch.randn(m, 7, generator=torch.Generator().manual_seed(m + f), dtype=torch.float64) + 0.3
    )
    sent = make_attack(f"min-max:perturbation={kind}", workers=m)(own, torch.arange(m) < f)
    expected = own.clone()
    expected[:f] = by_search(own[f:], kind)
    torch.testing.assert_close(sent, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_only_honest_worker_is_copied_and_all_byzantine_count_as_honest(kind: str) -> None:
    own = torch.tensor([[1.0, 2.0], [5.0, -1.0], [9.0, 4.0]], dtype=torch.float64)
    attack = make_attack(f"min-max:perturbation={kind}", workers=3)
    assert attack(own, torch.tensor([True, False, True])).tolist() == [[5.0, -1.0]] * 3
    torch.testing.assert_close(
        attack(own, torch.ones(3, dtype=torch.bool)), by_search(own, kind).expand(3, 2)
    )


def test_precision_far_from_zero() -> None:
    """In single precision, with a mean much larger than the deviations, distances have the
    precision of the deviations.
    """
    deviations = torch.randn(9, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = by_search(deviations[4:], "std")
    sent = make_attack("min-max", workers=9)((deviations + 1000).float(), torch.arange(9) < 4)
    torch.testing.assert_close(sent[0].double() - 1000, expected, rtol=1e-3, atol=1e-3)


def test_legal_perturbations() -> None:
    with pytest.raises(SpecError, match="perturbation must be std or unit or sign"):
        make_attack("min-max:perturbation=mean", workers=3)
