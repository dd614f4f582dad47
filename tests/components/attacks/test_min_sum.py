"""Min-Sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.api import make_attack
from dynabro_cli.core.errors import SpecError
from tests.components.attacks.test_min_max import KINDS, direction
from tests.tables import each_row


def by_search(honest: Tensor, kind: str) -> Tensor:
    """The paper's definition, by bisection over sums in a loop."""

    def total(vector: Tensor) -> float:
        return sum(float((vector - b).square().sum()) for b in honest)

    mean, along = honest.mean(0), direction(honest, kind)
    limit = max(total(a) for a in honest)
    low, high = 0.0, 1e6
    for _ in range(200):
        gamma = (low + high) / 2
        low, high = (gamma, high) if total(mean + gamma * along) <= limit else (low, gamma)
    return mean + low * along


def test_golden() -> None:
    # honest 0, 1 and 8: mean 3, the sums of squares are 65, 50 and 113; 3 (x - 3)^2 + 38 = 113 at x
    # = 3 - 5
    own, byzantine = (
        torch.tensor([[0.0], [99.0], [1.0], [8.0]]),
        torch.tensor([False, True, False, False]),
    )
    for kind in KINDS:
        sent = make_attack(f"min-sum:perturbation={kind}", workers=4)(own, byzantine)
        torch.testing.assert_close(sent[1], torch.tensor([-2.0]))


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
    sent = make_attack(f"min-sum:perturbation={kind}", workers=m)(own, torch.arange(m) < f)
    expected = own.clone()
    expected[:f] = by_search(own[f:], kind)
    torch.testing.assert_close(sent, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_only_honest_worker_is_copied_and_all_byzantine_count_as_honest(kind: str) -> None:
    own = torch.tensor([[1.0, 2.0], [5.0, -1.0], [9.0, 4.0]], dtype=torch.float64)
    attack = make_attack(f"min-sum:perturbation={kind}", workers=3)
    assert attack(own, torch.tensor([True, False, True])).tolist() == [[5.0, -1.0]] * 3
    torch.testing.assert_close(
        attack(own, torch.ones(3, dtype=torch.bool)), by_search(own, kind).expand(3, 2)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_as_far_as_the_farthest_honest_vector(kind: str) -> None:
    own = torch.randn(9, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    sent = make_attack(f"min-sum:perturbation={kind}", workers=9)(own, torch.arange(9) < 3)
    mean = own[3:].mean(0)
    torch.testing.assert_close((sent[0] - mean).norm(), (own[3:] - mean).norm(dim=1).max())


def test_legal_perturbations() -> None:
    with pytest.raises(SpecError, match="perturbation must be std or unit or sign"):
        make_attack("min-sum:perturbation=mean", workers=3)
