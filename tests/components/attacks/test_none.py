"""No attack."""

from __future__ import annotations

import torch

from dynabro_cli.components.api import make_attack


def test_golden() -> None:
    own = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert make_attack("none", workers=2)(own, torch.tensor([True, False])).tolist() == [
        [1.0, 2.0],
        [3.0, 4.0],
    ]
