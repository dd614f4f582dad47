"""FoundationFL: by hand, and beside a loop of NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_golden() -> None:
    """The middle one of 0, 1, 5, 8, 10 is 5 from both ends; 0, 1, 5, 5, 5, 8, 10 without two at
    each end gives 5.

    Without copies, 0, 1, 5, 8, 10 without one at each end is 14/3; with two, 0, 1, 5, 5, 5, 8, 10
    without one: 24/5.
    """
    messages = column(0, 1, 5, 8, 10)
    assert make_aggregator("foundation:copies=2", workers=5, byzantine=2)(messages).tolist() == [
        5.0
    ]
    for copies, expected in ((0, 14 / 3), (2, 24 / 5)):
        rule = make_aggregator(f"foundation:copies={copies},f=1", workers=5, byzantine=2)
        torch.testing.assert_close(rule(messages), torch.tensor([expected], dtype=torch.float64))


def test_golden_median() -> None:
    """The third one of 0, 4, 6, 20 is 6 from 0 and 14 from 20, and the second 4; the median of 0,
    4, 6, 6, 20 is 6.
    """
    assert make_aggregator("foundation:copies=1,rule=cwmed", workers=4, byzantine=1)(
        column(0, 4, 6, 20)
    ).tolist() == [6.0]
    assert make_aggregator("foundation:copies=0,rule=cwmed", workers=4, byzantine=1)(
        column(0, 4, 6, 20)
    ).tolist() == [5.0]


@pytest.mark.parametrize("copies", [0, 1, 4])
def test_equals_a_loop(copies: int) -> None:
    for seed in range(5):
        messages = torch.randn(
            9, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        rows = messages.numpy()
        ends = rows.max(0), rows.min(0)
        scores = [min(np.linalg.norm(row - end) for end in ends) for row in rows]
        everything = np.vstack([rows, *[rows[int(np.argmax(scores))]] * copies])
        expected = np.sort(everything, axis=0)[3 : len(everything) - 3].mean(0)
        made = make_aggregator(f"foundation:copies={copies}", workers=9, byzantine=3)(messages)
        np.testing.assert_allclose(made.numpy(), expected, rtol=1e-12, atol=1e-14)


def test_more_is_cut_off_than_there_is() -> None:
    with pytest.raises(
        SpecError,
        match=r"f=5 is not legal with 5 workers and copies=4; 2 f must be under 9. Try: f=4",
    ):
        make_aggregator("foundation:copies=4,f=5", workers=5, byzantine=2)
