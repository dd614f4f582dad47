"""Rearranged: beside all permutations, and in a run with the rule that it is made against."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dynabro_cli.components.api import make_attack
from tests.simulation.reference import quadratic


@pytest.mark.parametrize("honest", [3, 4])
def test_no_permutation_of_the_median_message_has_a_smaller_inner_product(honest: int) -> None:
    own = torch.randn(6, 5, generator=torch.Generator().manual_seed(honest), dtype=torch.float64)
    own[:, 4] *= own[:, 4] > 0
    byzantine = torch.arange(6) >= honest
    sent = make_attack("rearranged", workers=6)(own, byzantine)
    mean = own[:honest].mean(0)
    middle = own[:honest][own[:honest].norm(dim=1).argsort()[(honest - 1) // 2]]
    least = min(float(middle[list(places)] @ mean) for places in itertools.permutations(range(5)))
    assert torch.equal(sent[:honest], own[:honest])
    for message in sent[honest:]:
        assert torch.equal(message.sort().values, middle.sort().values)
        assert float(message @ mean) == pytest.approx(least, rel=1e-12)


@pytest.mark.thorough
def test_signguard_accepts_it_and_does_not_learn() -> None:
    fields = {
        "method": "sgd",
        "aggregator": "signguard",
        "workers": 13,
        "byzantine": 5,
        "budget": 300,
        "learning_rate": 0.1,
        "switching": "static",
    }
    clean, struck = (quadratic(attack=attack, **fields) for attack in ("none", "rearranged"))
    ends = [
        np.mean([gap for gap in outcome.gaps[-50:] if gap is not None])
        for outcome in (clean, struck)
    ]
    assert ends[1] > 5 * ends[0]
