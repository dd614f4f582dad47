"""Bulyan, against a loop that follows the paper."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.aggregators.bulyan import choose
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.vectors.gram import gram, squared_distances
from tests.tables import each_row


def test_golden() -> None:
    # m = 7, f = 1: theta = 5 are chosen. On the line 0, 1, 3, 6, 10, 15, 100 the sums of squared
    # distances are, of the n - 3 nearest of those left: n = 7: 0: 146, 1: 111, 3: 71, 6: 86, 10:
    # 171, 15: 446 -> 3; n = 6: 0: 137, 1: 107, 6: 77, 10: 122 -> 6; n = 5: 0: 101, 1: 82, 10: 106
    # -> 1; n = 4 (one): 10 and 15 have 25 -> 10, the first; n = 3 (one, at least): 0 and 15 have
    # 225 -> 0. Of 3, 6, 1, 10, 0 the 3 = theta - 2f nearest to the median 3 are 3, 1 and, of 0 and
    # 6 at the same distance, the smaller: (3 + 1 + 0)/3 = 4/3.
    messages = torch.tensor([[0.0], [1.0], [3.0], [6.0], [10.0], [15.0], [100.0]])
    assert choose(squared_distances(gram(messages)), 1, 5).tolist() == [2, 3, 1, 4, 0]
    torch.testing.assert_close(
        make_aggregator("bulyan", workers=7, byzantine=1)(messages), torch.tensor([4 / 3])
    )


def test_golden_each_coordinate_has_its_own_nearest() -> None:
    # f = 0: all are chosen, and nothing is left out: the mean
    messages = torch.tensor([[0.0, 5.0], [3.0, 1.0], [9.0, 0.0]])
    torch.testing.assert_close(
        make_aggregator("bulyan", workers=3, byzantine=0)(messages), torch.tensor([4.0, 2.0])
    )


def by_loop(messages: Tensor, f: int) -> Tensor:
    points, m = messages.double(), len(messages)
    left, chosen = list(range(m)), []
    while len(chosen) < m - 2 * f:
        scored = max(1, len(left) - f - 2)
        scores = []
        for i in left:
            distances = sorted(
                float((points[i] - points[j]).square().sum()) for j in left if j != i
            )
            scores.append(sum(distances[:scored]))
        chosen.append(left.pop(scores.index(min(scores))))
    columns = []
    for column in points[chosen].T:
        values = sorted(column.tolist())
        median = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
        nearest = sorted(values, key=lambda value: abs(value - median))[: len(values) - 2 * f]
        columns.append(sum(nearest) / len(nearest))
    return torch.tensor(columns, dtype=torch.float64)


@each_row(("m", "f"), [(7, 1), (8, 1), (11, 2), (14, 2), (15, 3), (23, 5)])
@each_row("seed", range(2))
def test_equals_a_loop(m: int, f: int, seed: int) -> None:
    messages = torch.randn(m, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    messages[:f] += 3
    torch.testing.assert_close(
        make_aggregator("bulyan", workers=m, byzantine=f)(messages), by_loop(messages, f)
    )


def test_messages_infinitely_far_are_chosen_last() -> None:
    messages = torch.randn(11, 5, generator=torch.Generator().manual_seed(0))
    messages[4], messages[7] = 1e30, -1e30
    assert not {4, 7} & set(choose(squared_distances(gram(messages)), 2, 7).tolist())
    assert bool((make_aggregator("bulyan", workers=11, byzantine=2)(messages).abs() < 5).all())


def test_no_kappa_and_legal_range_of_f() -> None:
    assert make_aggregator("bulyan", workers=7, byzantine=1).kappa is None
    with pytest.raises(
        SpecError,
        match=r"f=2 is not legal with 10 workers; m >= 4f \+ 3 must hold, so f may be at most 1",
    ):
        make_aggregator("bulyan", workers=10, byzantine=2)
