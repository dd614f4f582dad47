"""PoisonedFL: by hand, beside NumPy, and in a run."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dynabro_cli.components.api import make_attack
from tests.simulation.reference import quadratic


def test_golden() -> None:
    """d = 2, c = 8, and updates (3, 4), then (0, 2); s is the seed's.

    Nothing is sent in the first round. After (3, 4): |g| = 5, v = (0.6, 0.8), and the message is 40
    (0.6, 0.8) s = (24, 32) s. After (0, 2): u is along (0, 1) - (0.6, 0.8) s, and the message is 16
    |u|/|u|_2 s.
    """
    attack = make_attack("poisonedfl", workers=3)
    own, byzantine = torch.ones(3, 2, dtype=torch.float64), torch.tensor([True, False, True])
    assert attack(own, byzantine).tolist() == [[0, 0], [1, 1], [0, 0]]
    attack.follow(torch.tensor([3.0, 4.0], dtype=torch.float64))
    first = attack(own, byzantine)
    s = first[0].sign()
    torch.testing.assert_close(
        first, torch.stack([torch.tensor([24.0, 32.0]) * s, own[1], torch.tensor([24.0, 32.0]) * s])
    )
    attack.follow(torch.tensor([0.0, 2.0], dtype=torch.float64))
    u = np.array([0.0, 1.0]) - np.array([0.6, 0.8]) * s.numpy()
    expected = 16 * np.abs(u) / np.linalg.norm(u) * s.numpy()
    np.testing.assert_allclose(attack(own, byzantine)[2].numpy(), expected)


def test_the_direction_belongs_to_the_seed_and_not_to_who_is_byzantine() -> None:
    signs = []
    for seed, mask in (
        (0, [True, False]),
        (0, [False, True]),
        (0, [False, False]),
        (1, [True, False]),
    ):
        attack = make_attack("poisonedfl", workers=2, seed=seed)
        attack(torch.ones(2, 500), torch.tensor(mask))
        attack.follow(torch.ones(500))
        signs.append(attack(torch.ones(2, 500), torch.tensor([True, False]))[0].sign())
    assert all(torch.equal(signs[0], other) for other in signs[1:3])
    assert 150 < int((signs[0] == signs[3]).sum()) < 350
    assert 150 < int((signs[0] > 0).sum()) < 350


@pytest.mark.parametrize(("along", "expected"), [(1.0, 8.0), (-1.0, 8 * 0.7)])
def test_the_length_falls_after_a_window_without_success(along: float, expected: float) -> None:
    """Updates along s are a success; against it, c falls once after 3 rounds, and after 30 rounds
    it is the last over 0.5.
    """
    attack = make_attack("poisonedfl:window=3", workers=1)
    attack.follow(torch.ones(400))
    update = along * attack(torch.ones(1, 400), torch.tensor([True]))[0].sign()
    attack.follow(100 * update)
    attack.follow(update)
    message = attack(torch.ones(1, 400), torch.tensor([True]))[0]
    assert float(message.norm()) == pytest.approx(expected * math.sqrt(400), rel=1e-6)
    for _ in range(30):
        attack.follow(update)
    left = 8 if along > 0 else 8 * 0.7 ** math.floor(math.log(0.5 / 8, 0.7))
    assert float(attack(torch.ones(1, 400), torch.tensor([True]))[0].norm()) == pytest.approx(
        left * 20, rel=1e-6
    )


def test_an_update_that_is_not_finite_changes_nothing() -> None:
    attack = make_attack("poisonedfl", workers=1)
    attack.follow(torch.tensor([1.0, 2.0]))
    before = attack(torch.ones(1, 2), torch.tensor([True]))
    attack.follow(torch.tensor([1.0, math.nan]))
    assert torch.equal(attack(torch.ones(1, 2), torch.tensor([True])), before)


@pytest.mark.thorough
def test_in_a_run_it_moves_the_mean_and_not_the_median() -> None:
    fields = {
        "method": "sgd",
        "workers": 7,
        "byzantine": 3,
        "budget": 60,
        "learning_rate": 0.05,
        "attack": "poisonedfl",
    }
    mean, median = (quadratic(aggregator=rule, **fields).gaps[-1] for rule in ("mean", "cwmed"))
    assert median is not None
    assert mean is None or not math.isfinite(mean) or mean > 10 * median
