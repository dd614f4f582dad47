"""MoNNA's nearest-neighbour averaging."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError

LINE = torch.tensor([[0.0], [1.0], [3.0], [4.0], [30.0]])


def test_golden() -> None:
    # f = 1, from 0: all but 30, (0 + 1 + 3 + 4)/4 = 2; from 30: all but 0, 38/4 = 9.5
    assert make_aggregator("monna", workers=5, byzantine=1)(LINE).tolist() == [2.0]
    assert make_aggregator("monna:pivot=4", workers=5, byzantine=1)(LINE).tolist() == [9.5]
    # f = 2, from 3: 3, 4 and 1 at distances 0, 1, 2
    torch.testing.assert_close(
        make_aggregator("monna:pivot=2,f=2", workers=5, byzantine=1)(LINE), torch.tensor([8 / 3])
    )


def test_golden_tie_goes_to_the_lowest_index() -> None:
    # from 2, 0 and 4 are as far
    rule = make_aggregator("monna:pivot=1", workers=3, byzantine=1)
    assert rule(torch.tensor([[0.0], [2.0], [4.0]])).tolist() == [1.0]
    assert rule(torch.tensor([[4.0], [2.0], [0.0]])).tolist() == [3.0]


def test_distances_are_those_of_whole_vectors() -> None:
    # from (0, 0): (3, 3) at sqrt(18), (4, 0) at 4, (0, 5) at 5
    messages = torch.tensor([[0.0, 0.0], [3.0, 3.0], [4.0, 0.0], [0.0, 5.0]])
    torch.testing.assert_close(
        make_aggregator("monna", workers=4, byzantine=1)(messages), torch.tensor([7 / 3, 1.0])
    )


def test_a_byzantine_pivot_is_followed() -> None:
    messages = torch.tensor([[1e6], [0.0], [1.0]])
    assert make_aggregator("monna", workers=3, byzantine=1)(messages).item() > 1e5
    assert make_aggregator("monna", workers=3, byzantine=1).kappa is None


def test_legal_ranges() -> None:
    with pytest.raises(SpecError, match="'monna': f=2 is not legal with 4 workers"):
        make_aggregator("monna", workers=4, byzantine=2)
    with pytest.raises(
        SpecError,
        match=r"pivot=4 is not legal with 4 workers, which are counted from 0. .* at most 3",
    ):
        make_aggregator("monna:pivot=4", workers=4, byzantine=1)
