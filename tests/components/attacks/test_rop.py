"""Relocated orthogonal perturbation: by hand, beside NumPy, and in a run with centred clipping."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynabro_cli.components.api import make_attack
from dynabro_cli.components.attacks.alie import alie_z
from tests.simulation.reference import quadratic
from tests.tables import each_row


def test_golden() -> None:
    """The honest mean is (2, 0): in the first round r = (1, 0), o = (0, 1), and the message is 0 -
    z o, at 270 degrees.

    After an update of (0, 4): lambda = 1/2 gives r along (1, 2), o along (1, 1) - 3/5 (1, 2) =
    (2/5, -1/5), and pi = 3/4 the place 3/4 (0, 4) + 1/4 (2, 0) = (1/2, 3). With z = sqrt 5, the
    message is (1/2, 3) - (2, -1).
    """
    attack = make_attack(f"rop:z={5**0.5},weight=0.5,place=0.75", workers=3)
    own = torch.tensor([[1.0, 1.0], [3.0, -1.0], [9.0, 9.0]], dtype=torch.float64)
    byzantine = torch.tensor([False, False, True])
    first = attack(own, byzantine)
    torch.testing.assert_close(first[2], torch.tensor([0.5, -(5**0.5)], dtype=torch.float64))
    assert torch.equal(first[:2], own[:2])
    attack.follow(torch.tensor([0.0, 4.0], dtype=torch.float64))
    torch.testing.assert_close(
        attack(own, byzantine)[2], torch.tensor([-1.5, 4.0], dtype=torch.float64)
    )


@each_row("angle", [90, 180, 270, 30])
def test_equals_numpy(angle: int) -> None:
    own = torch.randn(9, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    byzantine = torch.arange(9) < 4
    attack = make_attack(f"rop:angle={angle}", workers=9)
    attack.follow(own[8] * 3)
    mean, update = own[4:].numpy().mean(0), own[8].numpy() * 3
    heading = 0.9 * update + 0.1 * mean
    r = heading / np.linalg.norm(heading)
    o = np.ones(6) - r.sum() * r
    o /= np.linalg.norm(o)
    theta = np.radians(angle)
    expected = update + alie_z(9, 4) * (np.sin(theta) * o + np.cos(theta) * r)
    for row in attack(own, byzantine)[:4]:
        np.testing.assert_allclose(row.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_a_heading_along_all_coordinates_has_no_orthogonal_part() -> None:
    """(1, 1) - 1'r r = 0 for r = (1, 1)/sqrt 2, up to rounding, which is not a direction."""
    own = torch.tensor([[2.0, 2.0], [2.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    message = make_attack("rop:z=1", workers=3)(own, torch.tensor([False, False, True]))[2]
    torch.testing.assert_close(message, torch.zeros(2, dtype=torch.float64))


@pytest.mark.thorough
def test_in_a_run_it_harms_centred_clipping_more_than_no_attack_does() -> None:
    fields = {
        "method": "momentum",
        "workers": 9,
        "byzantine": 4,
        "budget": 400,
        "learning_rate": 0.1,
        "switching": "static",
        "aggregator": "centered-clipping:tau=0.5",
        "attack_entry": "message",
    }
    clean, struck = (quadratic(attack=attack, **fields) for attack in ("none", "rop:z=2"))
    ends = [
        np.mean([gap for gap in outcome.gaps[-50:] if gap is not None])
        for outcome in (clean, struck)
    ]
    assert ends[1] > 5 * ends[0]
