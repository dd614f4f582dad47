"""Coordinate-wise trimmed mean."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import trim_mean

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row

MESSAGES = torch.tensor([[4.0, 0.0], [1.0, -9.0], [90.0, 3.0], [2.0, 1.0], [-7.0, 2.0]])


def test_golden() -> None:
    # columns sorted: -7 1 2 4 90 and -9 0 1 2 3; one cut off at each end: (1 + 2 + 4)/3 = 7/3, (0 +
    # 1 + 2)/3 = 1
    aggregate = make_aggregator("cwtm", workers=5, byzantine=1)(MESSAGES)
    torch.testing.assert_close(aggregate, torch.tensor([7 / 3, 1.0]))


def test_f_of_its_own_goes_before_the_declared_number() -> None:
    # two cut off at each end: the medians, 2 and 1; none: the means, 90/5 = 18 and -3/5
    assert make_aggregator("cwtm:f=2", workers=5, byzantine=1)(MESSAGES).tolist() == [2.0, 1.0]
    untrimmed = make_aggregator("cwtm:f=0", workers=5, byzantine=1)(MESSAGES)
    torch.testing.assert_close(untrimmed, torch.tensor([18.0, -0.6]))


@each_row(("m", "f"), [(6, 2), (17, 8), (17, 3), (25, 6)])
def test_equals_scipy(m: int, f: int) -> None:
    messages = torch.randn(
        m, 50, generator=torch.Generator().manual_seed(m + f), dtype=torch.float64
    )
    # scipy cuts off int(proportion * m), so that half a worker more keeps rounding from losing one
    expected = torch.from_numpy(trim_mean(messages.numpy(), (f + 0.5) / m, axis=0))
    torch.testing.assert_close(make_aggregator("cwtm", workers=m, byzantine=f)(messages), expected)


def test_kappa() -> None:
    # 6f/(m - 2f) (1 + f/(m - 2f)): m = 5, f = 1 gives 6/3 * 4/3 = 8/3; f = 0 is the mean, and exact
    assert make_aggregator("cwtm", workers=5, byzantine=1).kappa == pytest.approx(8 / 3)
    assert make_aggregator("cwtm", workers=5, byzantine=0).kappa == 0


def test_legal_range_of_f() -> None:
    make_aggregator("cwtm:f=2", workers=5, byzantine=0)
    with pytest.raises(SpecError, match="'cwtm': f=2 is not legal with 4 workers; f must be"):
        make_aggregator("cwtm:f=2", workers=4, byzantine=0)
    with pytest.raises(SpecError, match="f=-1 is not legal; f must be a whole number >= 0 or auto"):
        make_aggregator("cwtm:f=-1", workers=4, byzantine=0)
