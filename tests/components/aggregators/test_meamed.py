"""Mean around the median, and the mean around a trimmed mean that it shares with Phocas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.aggregators import _order
from dynabro_cli.components.aggregators._order import nearest_mean
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError


def test_golden() -> None:
    # columns 0 1 3 4 30 and 9 -8 2 1 0, medians 3 and 1. f = 1 leaves out 30 and -8: 8/4 = 2, 12/4
    # = 3; f = 2 leaves 3 4 1 and 1 2 0: 8/3, 1
    messages = torch.tensor([[0.0, 9.0], [1.0, -8.0], [3.0, 2.0], [4.0, 1.0], [30.0, 0.0]])
    torch.testing.assert_close(
        make_aggregator("meamed", workers=5, byzantine=1)(messages), torch.tensor([2.0, 3.0])
    )
    torch.testing.assert_close(
        make_aggregator("meamed:f=2", workers=5, byzantine=1)(messages), torch.tensor([8 / 3, 1.0])
    )


def test_golden_even_and_ties() -> None:
    # the median of 0 2 6 100 is 4, from which 0, 2, 6 are at 4, 2, 2: 8/3; of 0 and 4 around 2, the
    # smaller one counts
    messages = torch.tensor([[0.0], [2.0], [6.0], [100.0]])
    torch.testing.assert_close(
        make_aggregator("meamed", workers=4, byzantine=1)(messages), torch.tensor([8 / 3])
    )
    for line in ([0.0, 2.0, 4.0], [4.0, 0.0, 2.0]):
        assert make_aggregator("meamed", workers=3, byzantine=1)(
            torch.tensor(line)[:, None]
        ).tolist() == [1.0]


def by_loop(messages: Tensor, trim: int, left_out: int) -> Tensor:
    kept = []
    for column in messages.double().T:
        values = column.sort().values
        centre = values[trim : len(values) - trim].mean()
        nearest = (values - centre).abs().sort(stable=True).indices[: len(values) - left_out]
        kept.append(values[nearest].mean())
    return torch.stack(kept)


@pytest.mark.parametrize(
    ("m", "columns"), [*((m, 3) for m in (1, 2, 5, 8, 17)), (8, _order.COLUMNS)]
)
def test_nearest_mean_equals_a_loop(m: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel serves every number of values cut off and left out, also more than half of them,
    as in Bulyan.
    """
    monkeypatch.setattr(_order, "COLUMNS", columns)
    messages = torch.randn(m, 10, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    for trim in range((m + 1) // 2):
        for left_out in range(m):
            torch.testing.assert_close(
                nearest_mean(messages, trim, left_out), by_loop(messages, trim, left_out)
            )


def test_no_kappa_and_legal_range_of_f() -> None:
    assert make_aggregator("meamed", workers=5, byzantine=1).kappa is None
    with pytest.raises(SpecError, match="'meamed': f=2 is not legal with 4 workers"):
        make_aggregator("meamed", workers=4, byzantine=2)
