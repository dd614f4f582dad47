"""Nearest-neighbour mixing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError


def mix(messages: Tensor, f: int) -> Tensor:
    stage = REGISTRIES["pre_aggregators"].parse("nnm").build(AggregatorSetting(len(messages), f))
    assert stage.workers == len(messages)
    mixed: Tensor = stage.mix(messages)
    return mixed


def test_golden() -> None:
    # m - f = 3 nearest, oneself among them: 0: 0 1 3; 1: 1 0 3; 3: 3 1 0; 90: 90 3 1
    mixed = mix(torch.tensor([[0.0], [1.0], [3.0], [90.0]]), 1)
    torch.testing.assert_close(mixed.flatten(), torch.tensor([4 / 3, 4 / 3, 4 / 3, 94 / 3]))


def test_golden_tie_goes_to_the_lowest_index() -> None:
    # 0 has 2 and -2 at the same distance: the one that stands first is mixed in
    assert mix(torch.tensor([[0.0], [2.0], [-2.0]]), 1).flatten().tolist() == [1.0, 1.0, -1.0]
    assert mix(torch.tensor([[0.0], [-2.0], [2.0]]), 1).flatten().tolist() == [-1.0, -1.0, 1.0]


@pytest.mark.parametrize(("m", "f"), [(3, 1), (7, 2), (17, 8)])
def test_equals_a_loop(m: int, f: int) -> None:
    messages = torch.randn(m, 5, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    points = messages.numpy()
    expected = []
    for point in points:
        order = sorted(range(m), key=lambda j: float(((points[j] - point) ** 2).sum()))
        expected.append(points[order[: m - f]].mean(0))
    torch.testing.assert_close(mix(messages, f), torch.from_numpy(np.stack(expected)))


def test_f_zero_gives_the_mean_to_all() -> None:
    messages = torch.tensor([[0.0, 6.0], [3.0, 0.0], [6.0, 3.0]])
    torch.testing.assert_close(mix(messages, 0), torch.full((3, 2), 3.0))


def test_golden_chain() -> None:
    # mixed as in the first golden case: 4/3 4/3 4/3 94/3; one cut off at each end leaves 4/3 4/3
    messages = torch.tensor([[0.0], [1.0], [3.0], [90.0]])
    chain = make_aggregator("nnm+cwtm", workers=4, byzantine=1)
    torch.testing.assert_close(chain(messages), torch.tensor([4 / 3]))


def test_kappa_of_the_chain() -> None:
    # 8f/(m - f) (kappa_F + 1): m = 5, f = 1, CWTM 8/3: 8/4 * 11/3 = 22/3; twice: 2 (22/3 + 1) =
    # 50/3; unknown stays so
    assert make_aggregator("nnm+cwtm", workers=5, byzantine=1).kappa == pytest.approx(22 / 3)
    assert make_aggregator("nnm+nnm+cwtm", workers=5, byzantine=1).kappa == pytest.approx(50 / 3)
    assert make_aggregator("nnm+mean", workers=5, byzantine=1).kappa is None


def test_legal_range_of_f() -> None:
    make_aggregator("nnm:f=2+mean", workers=5, byzantine=0)
    with pytest.raises(SpecError, match="'nnm': f=2 is not legal with 4 workers; f must be"):
        make_aggregator("nnm:f=2+mean", workers=4, byzantine=0)
