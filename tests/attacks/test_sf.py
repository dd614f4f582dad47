"""Sign flip."""

from __future__ import annotations

import torch

from dynabro_cli.api import make_attack


def test_golden_each_worker_negates_its_own_gradient() -> None:
    # not minus the honest mean, (-3, -4) for both: that is ipm:epsilon=1
    own = torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 0.5]])
    messages = make_attack("sf", workers=3)(own, torch.tensor([True, False, True]))
    assert messages.tolist() == [[-1.0, 2.0], [3.0, 4.0], [5.0, -0.5]]
