"""Static clipping."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError


def test_golden() -> None:
    # lengths 5, 1 and 2.5, and c = 2.5: half of the first, the others as they are
    messages = torch.tensor([[3.0, 4.0], [0.0, 1.0], [-1.5, 2.0]])
    stage = REGISTRIES["pre_aggregators"].parse("clipping:c=2.5").build(AggregatorSetting(3, 1))
    assert stage.mix(messages).tolist() == [[1.5, 2.0], [0.0, 1.0], [-1.5, 2.0]]


@pytest.mark.parametrize("size", [1e10, 1e20, 3e38])
def test_a_length_whose_square_is_no_number(size: float) -> None:
    messages = torch.zeros(3, 4)
    messages[1] = size
    stage = REGISTRIES["pre_aggregators"].parse("clipping:c=2").build(AggregatorSetting(3, 1))
    torch.testing.assert_close(stage.mix(messages)[1], torch.ones(4), rtol=1e-5, atol=0)


def test_no_kappa_and_c_is_asked_for() -> None:
    assert make_aggregator("clipping:c=1+cwtm", workers=5, byzantine=1).kappa is None
    with pytest.raises(SpecError, match=r"'clipping' needs c=. Try: 'clipping:c=VALUE'"):
        make_aggregator("clipping+cwtm", workers=5, byzantine=1)
