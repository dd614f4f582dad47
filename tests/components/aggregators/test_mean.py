"""The mean."""

from __future__ import annotations

import torch

from dynabro_cli.components.api import make_aggregator


def test_golden() -> None:
    # columns: (1 + 2 + 6)/3 = 3, (-3 + 0 + 9)/3 = 2
    messages = torch.tensor([[1.0, -3.0], [2.0, 0.0], [6.0, 9.0]])
    assert make_aggregator("mean", workers=3, byzantine=1)(messages).tolist() == [3.0, 2.0]


def test_kappa_is_zero_without_byzantine_workers_and_unknown_with_them() -> None:
    assert make_aggregator("mean", workers=4, byzantine=0).kappa == 0.0
    assert make_aggregator("mean", workers=4, byzantine=1).kappa is None
