"""Adaptive robust clipping."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError

# lengths 5, 1, 10, 13, 2
MESSAGES = torch.tensor([[3.0, 4.0], [0.0, -1.0], [6.0, 8.0], [5.0, -12.0], [2.0, 0.0]])


def test_golden() -> None:
    # f = 1: k = floor(2 (1/5) 4) = 1, so that 13 is cut to the next, 10. f = 2: k = floor(2 (2/5)
    # 3) = 2, 13 and 10 to 5
    one = REGISTRIES["pre_aggregators"].parse("arc").build(AggregatorSetting(5, 1)).mix(MESSAGES)
    two = (
        REGISTRIES["pre_aggregators"].parse("arc:f=2").build(AggregatorSetting(5, 1)).mix(MESSAGES)
    )
    cut = torch.tensor([[3.0, 4.0], [0.0, -1.0], [6.0, 8.0], [50 / 13, -120 / 13], [2.0, 0.0]])
    torch.testing.assert_close(one, cut)
    torch.testing.assert_close(
        two, torch.tensor([[3.0, 4.0], [0.0, -1.0], [3.0, 4.0], [25 / 13, -60 / 13], [2.0, 0.0]])
    )


def test_golden_more_than_f_are_cut() -> None:
    # m = 9, f = 3: k = floor(2 (3/9) 6) = 4, so that 9, 8, 7 and 6 are cut to 5
    line = torch.arange(1.0, 10.0)[:, None]
    mixed = REGISTRIES["pre_aggregators"].parse("arc").build(AggregatorSetting(9, 3)).mix(line)
    torch.testing.assert_close(mixed, line.clamp_max(5))


def test_without_byzantine_workers_nothing_is_cut() -> None:
    assert torch.equal(
        REGISTRIES["pre_aggregators"].parse("arc").build(AggregatorSetting(5, 0)).mix(MESSAGES),
        MESSAGES,
    )


def test_kappa_of_the_chain() -> None:
    # kappa_F + 2f/(m - 2f): m = 5, f = 1, CWTM 8/3: 8/3 + 2/3; behind NNM 2 (8/3 + 1) = 22/3: 22/3
    # + 2/3; unknown stays so
    assert make_aggregator("arc+cwtm", workers=5, byzantine=1).kappa == pytest.approx(10 / 3)
    assert make_aggregator("arc+nnm+cwtm", workers=5, byzantine=1).kappa == pytest.approx(8)
    assert make_aggregator("arc+mean", workers=5, byzantine=1).kappa is None
    assert make_aggregator("arc:f=1+cwtm", workers=5, byzantine=2).kappa is None


def test_legal_range_of_f() -> None:
    with pytest.raises(SpecError, match="'arc': f=2 is not legal with 4 workers"):
        make_aggregator("arc:f=2+mean", workers=4, byzantine=0)
