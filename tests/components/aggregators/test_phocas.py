"""Phocas."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError


def test_golden() -> None:
    # f = 1: the trimmed mean of 0 6 7 7 13.5 is 20/3, from which 0 is at 6.67 and 13.5 at 6.83,
    # which is left out: 20/4 = 5 (meamed, around the median 7, would leave out 0); the trimmed mean
    # of -2 5 -3 4 6 is 7/3, and -3 is left out: 13/4
    messages = torch.tensor([[0.0, -2.0], [13.5, 5.0], [7.0, -3.0], [6.0, 4.0], [7.0, 6.0]])
    torch.testing.assert_close(
        make_aggregator("phocas", workers=5, byzantine=1)(messages), torch.tensor([5.0, 13 / 4])
    )
    assert make_aggregator("meamed", workers=5, byzantine=1)(messages)[0] == 33.5 / 4


def test_golden_tie_goes_to_the_smaller_value() -> None:
    # 0 2 4 with f = 1: the trimmed mean is 2, and 0 and 4 are as far from it
    for line in ([0.0, 2.0, 4.0], [4.0, 0.0, 2.0]):
        assert make_aggregator("phocas", workers=3, byzantine=1)(
            torch.tensor(line)[:, None]
        ).tolist() == [1.0]


@pytest.mark.parametrize("seed", range(2))
def test_equals_a_loop(seed: int) -> None:
    m, f = 9, 3
    messages = torch.randn(
        m, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    centre = make_aggregator("cwtm", workers=m, byzantine=f)(messages)
    order = (messages - centre).abs().sort(0).indices[: m - f]
    aggregate = make_aggregator("phocas", workers=m, byzantine=f)(messages)
    torch.testing.assert_close(aggregate, messages.gather(0, order).mean(0))


def test_no_kappa_and_legal_range_of_f() -> None:
    assert make_aggregator("phocas", workers=5, byzantine=1).kappa is None
    with pytest.raises(SpecError, match="'phocas': f=2 is not legal with 4 workers"):
        make_aggregator("phocas", workers=4, byzantine=2)
