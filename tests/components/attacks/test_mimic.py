"""Mimic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynabro_cli.components.api import make_attack
from dynabro_cli.core.errors import SpecError


def test_golden_fixed() -> None:
    own = torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 0.5], [7.0, 7.0]])
    byzantine = torch.tensor([True, False, True, False])
    for worker, copied in ((0, [3.0, 4.0]), (1, [3.0, 4.0]), (2, [7.0, 7.0]), (3, [7.0, 7.0])):
        sent = make_attack(f"mimic:worker={worker}", workers=4)(own, byzantine)
        assert sent.tolist() == [copied, [3.0, 4.0], copied, [7.0, 7.0]]


def test_the_next_honest_worker_goes_round() -> None:
    own, byzantine = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([False, True, True])
    assert make_attack("mimic:worker=1", workers=3)(own, byzantine).flatten().tolist() == [
        1.0,
        1.0,
        1.0,
    ]


@pytest.mark.parametrize(
    ("count", "target"), [*((count, "fixed") for count in (1, 4)), (1, "learned")]
)
def test_one_to_all(count: int, target: str) -> None:
    own = torch.arange(8.0).view(4, 2)
    byzantine = torch.arange(4) < count
    sent = make_attack(f"mimic:target={target}", workers=4)(own, byzantine)
    assert torch.equal(sent, torch.where(byzantine[:, None], own[count % 4], own))


def test_golden_learned() -> None:
    # round 0: honest (1, 0), (-3, 0), (2, 0), mean 0; the farthest is (-3, 0), so that z starts at
    # (-1, 0); u = sum of (g.z) g = (-1 - 9 - 4, 0), z = (-1, 0), and the scores are -1, 3, -2:
    # worker 1 is copied from the next round on
    attack, byzantine = (
        make_attack("mimic:target=learned", workers=4),
        torch.tensor([False, False, False, True]),
    )
    first = torch.tensor([[1.0, 0.0], [-3.0, 0.0], [2.0, 0.0], [8.0, 8.0]])
    assert attack(first, byzantine)[3].tolist() == [1.0, 0.0]  # nothing is learned yet: worker 0
    second = torch.tensor([[5.0, 0.0], [1.0, 1.0], [0.0, 2.0], [8.0, 8.0]])
    assert attack(second, byzantine)[3].tolist() == [1.0, 1.0]


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / max(float(np.linalg.norm(vector)), 1e-300)


@pytest.mark.parametrize("warmup", [1, 5, 100])
def test_learned_step_by_step(warmup: int) -> None:
    """By its definition in a loop over workers and rounds, under identities that change."""
    m, d, rounds = 6, 4, 12
    chance = np.random.default_rng(0)
    shift = chance.normal(size=(m, d))  # so that some workers stand out
    attack = make_attack(f"mimic:target=learned,warmup={warmup}", workers=m)
    scores, seen, copied, mean = np.zeros(m), np.zeros(m), set(), np.zeros(d)
    for t in range(rounds):
        own, byzantine = shift + chance.normal(size=(m, d)), chance.permutation(m) < t % (m + 1)
        honest = np.flatnonzero(~byzantine) if not byzantine.all() else np.arange(m)
        merits = [abs(scores[j]) / max(seen[j], 1) if t else -j for j in honest]
        chosen = honest[int(np.argmax(merits))]
        copied.add(int(chosen))
        sent = attack(torch.from_numpy(own), torch.from_numpy(byzantine)).numpy()
        np.testing.assert_array_equal(sent, np.where(byzantine[:, None], own[chosen], own))
        if t >= warmup:
            continue
        mean = (t * mean + own[honest].mean(0)) / (t + 1)
        deviations = own[honest] - mean
        if t == 0:
            z = unit(deviations[np.argmax((deviations**2).sum(1))])
        u = sum((deviation @ z) * deviation for deviation in deviations)
        z = unit((t * z + unit(u)) / (t + 1))
        for j in honest:
            scores[j] += z @ own[j]
            seen[j] += 1
    assert len(copied) > 2


def test_an_honest_worker_that_stands_out_is_found() -> None:
    """Worker 3's gradients have a mean of their own, in one direction of many."""
    chance = torch.Generator().manual_seed(0)
    attack, byzantine = make_attack("mimic:target=learned", workers=9), torch.arange(9) >= 6
    for _ in range(30):
        own = torch.randn(9, 50, generator=chance)
        own[3, 7] += 6
        sent = attack(own, byzantine)
    assert torch.equal(sent[6:], own[3].expand(3, 50))


def test_legal_values() -> None:
    with pytest.raises(SpecError, match=r"worker=3 is not one of workers=3. Try: worker=0 to 2"):
        make_attack("mimic:worker=3", workers=3)
    with pytest.raises(SpecError, match="target must be fixed or learned"):
        make_attack("mimic:target=first", workers=3)
