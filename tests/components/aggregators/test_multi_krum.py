"""Multi-Krum: Krum's scores, and the mean of the best."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row


def test_golden() -> None:
    # m = 5, f = 1, so 2 nearest others. On the line 0, 1, 3, 4, 30 the sums of squared distances to
    # them are 10, 5, 5, 10 and 676 + 729. q = m - f = 4: (0 + 1 + 3 + 4)/4 = 2. q = 3: of 0 and 4,
    # which tie, the first: (1 + 3 + 0)/3 = 4/3.
    messages = torch.tensor([[0.0], [1.0], [3.0], [4.0], [30.0]])
    assert make_aggregator("multi-krum", workers=5, byzantine=1)(messages).tolist() == [2.0]
    some = make_aggregator("multi-krum:q=3", workers=5, byzantine=1)
    torch.testing.assert_close(some(messages), torch.tensor([4 / 3]))
    torch.testing.assert_close(some(messages.flip(0)), torch.tensor([8 / 3]))


def test_golden_variant_with_one_neighbour_more() -> None:
    # On the line 0, 1, 2, 8, 9, 10, 12 with f = 2 the two best of 3 others (m - f - 2) are 10 (1 +
    # 4 + 4) and 9 (1 + 1 + 9); of 4 others (m - f - 1) they are 8 (1 + 4 + 16 + 36 = 57) and 9 (1 +
    # 1 + 9 + 49 = 60; 10 has 73)
    messages = torch.tensor([0.0, 1.0, 2.0, 8.0, 9.0, 10.0, 12.0])[:, None]
    assert make_aggregator("multi-krum:q=2", workers=7, byzantine=2)(messages).tolist() == [9.5]
    assert make_aggregator("multi-krum:q=2,neighbours=m-f-1", workers=7, byzantine=2)(
        messages
    ).tolist() == [8.5]


@pytest.mark.parametrize("seed", range(2))
def test_with_q_of_one_it_is_krum(seed: int) -> None:
    messages = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed))
    one = make_aggregator("multi-krum:q=1", workers=9, byzantine=3)
    krum = make_aggregator("krum", workers=9, byzantine=3)
    assert torch.equal(one(messages), krum(messages))
    assert one.kappa == krum.kappa


@each_row(("m", "f", "q"), [(5, 1, 4), (7, 2, 3), (17, 7, 10)])
@each_row("seed", range(2))
def test_equals_a_loop(m: int, f: int, q: int, seed: int) -> None:
    messages = torch.randn(m, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    points = messages.numpy()
    scores = [sum(sorted(((points - points[i]) ** 2).sum(1))[1 : m - f - 1]) for i in range(m)]
    expected = points[np.argsort(scores, kind="stable")[:q]].mean(0)
    aggregate = make_aggregator(f"multi-krum:q={q}", workers=m, byzantine=f)(messages)
    torch.testing.assert_close(aggregate, torch.from_numpy(expected))


def test_kappa_is_krums_for_q_of_one_only() -> None:
    # 6 (1 + f/(m - 2f)) at m = 5, f = 1: 6 * 4/3 = 8
    assert make_aggregator("multi-krum:q=1", workers=5, byzantine=1).kappa == pytest.approx(8)
    assert make_aggregator("multi-krum:q=2", workers=5, byzantine=1).kappa is None


def test_legal_ranges() -> None:
    make_aggregator("multi-krum:q=5", workers=7, byzantine=2)
    with pytest.raises(
        SpecError, match=r"f=2 is not legal with 6 workers; 2f \+ 2 < m must hold, so f .* 1"
    ):
        make_aggregator("multi-krum", workers=6, byzantine=2)
    with pytest.raises(
        SpecError,
        match=r"q=6 is not legal with 7 workers and f=2. Try: 'multi-krum:q=...' with at most 5",
    ):
        make_aggregator("multi-krum:q=6", workers=7, byzantine=2)
