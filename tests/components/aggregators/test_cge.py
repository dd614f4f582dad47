"""Comparative gradient elimination."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError


def test_golden() -> None:
    # lengths 5, 13, 1, 10: f = 1 leaves out (-5, 12): (9/3, 13/3)
    messages = torch.tensor([[3.0, 4.0], [-5.0, 12.0], [0.0, 1.0], [6.0, 8.0]])
    torch.testing.assert_close(
        make_aggregator("cge", workers=4, byzantine=1)(messages), torch.tensor([3.0, 13 / 3])
    )
    assert make_aggregator("cge:f=0", workers=4, byzantine=1)(messages).tolist() == [1.0, 6.25]


def test_golden_tie_goes_to_the_lowest_index() -> None:
    # (3, 4) and (5, 0) are 5 long
    rule = make_aggregator("cge", workers=3, byzantine=1)
    assert rule(torch.tensor([[3.0, 4.0], [5.0, 0.0], [0.0, 1.0]])).tolist() == [1.5, 2.5]
    assert rule(torch.tensor([[5.0, 0.0], [3.0, 4.0], [0.0, 1.0]])).tolist() == [2.5, 0.5]


@pytest.mark.parametrize("size", [1e18, 1e20, 3e38])
def test_lengths_whose_squares_are_no_numbers(size: float) -> None:
    # among these, too, shorter messages are distinguished from longer ones
    messages = torch.full((3, 4), size)
    messages[1] /= 2
    messages[2] = 1
    rule = make_aggregator("cge", workers=3, byzantine=1)
    assert rule(messages).tolist() == pytest.approx([size / 4] * 4)


def test_no_kappa_and_legal_range_of_f() -> None:
    assert make_aggregator("cge", workers=5, byzantine=1).kappa is None
    with pytest.raises(SpecError, match="'cge': f=2 is not legal with 4 workers"):
        make_aggregator("cge", workers=4, byzantine=2)
