"""Coordinate-wise median."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row


def test_golden_odd() -> None:
    # columns sorted: 1 2 90 -> 2, -5 0 7 -> 0; the medians come from different workers
    messages = torch.tensor([[1.0, 0.0], [2.0, 7.0], [90.0, -5.0]])
    assert make_aggregator("cwmed", workers=3, byzantine=1)(messages).tolist() == [2.0, 0.0]


def test_golden_even_takes_the_midpoint() -> None:
    # columns sorted: 1 2 5 90 -> (2 + 5)/2 = 3.5, -8 0 0 1 -> 0; torch.median would say 2 in the
    # first
    messages = torch.tensor([[5.0, 0.0], [2.0, -8.0], [90.0, 1.0], [1.0, 0.0]])
    assert make_aggregator("cwmed", workers=4, byzantine=1)(messages).tolist() == [3.5, 0.0]


@each_row("m", [1, 2, 7, 8, 17, 24])
def test_equals_numpy(m: int) -> None:
    messages = torch.randn(m, 50, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    expected = torch.from_numpy(np.median(messages.numpy(), axis=0))
    torch.testing.assert_close(make_aggregator("cwmed", workers=m, byzantine=0)(messages), expected)


def test_kappa() -> None:
    # 4 (1 + f/(m - 2f))^2 at m = 5, f = 1: 4 (4/3)^2 = 64/9
    assert make_aggregator("cwmed", workers=5, byzantine=1).kappa == pytest.approx(64 / 9)
    assert make_aggregator("cwmed", workers=5, byzantine=0).kappa == 4


def test_legal_range_of_f() -> None:
    make_aggregator("cwmed", workers=5, byzantine=2)
    with pytest.raises(SpecError, match="f=2 is not legal with 4 workers; f must be"):
        make_aggregator("cwmed", workers=4, byzantine=2)
