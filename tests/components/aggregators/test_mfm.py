"""Median-filtered mean: the cases of Algorithm 3."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row


def line(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def aggregate(messages: Tensor, threshold: float, computations: int = 1) -> list[float]:
    rule = make_aggregator(f"mfm:threshold={threshold}", workers=len(messages), byzantine=0)
    return rule(messages, computations).tolist()


def test_golden_first_of_m_is_the_median() -> None:
    # T = 4. Within T/2 = 2 of 0 are 0 1 2, three of five: 0 is in M, and so are 1 and 2. The first
    # in order counts: within 4 of 0 are 0 1 2, mean 1; within 4 of 1 are 0 1 2 5 (at exactly 4),
    # mean 8/4 = 2.
    assert aggregate(line(0, 1, 2, 5, 9), 4) == [1.0]
    assert aggregate(line(1, 0, 2, 5, 9), 4) == [2.0]


def test_golden_a_message_outside_m_is_passed_over() -> None:
    # 9 and 5 come first, but each has only itself within 2: the first in M is 2, within 4 of which
    # are 5 2 0 1, mean 2
    assert aggregate(line(9, 5, 2, 0, 1), 4) == [2.0]


def test_golden_two_dimensions() -> None:
    # T = 10: (3, 4) and (-3, 4) are at 5 = T/2 from (0, 0), which alone is in M; (-6, -8), at 10 =
    # T, is averaged in, and (8, 8) is not: (0 + 3 - 3 - 6)/4 = -1.5, (0 + 4 + 4 - 8)/4 = 0
    messages = torch.tensor([[8.0, 8.0], [0.0, 0.0], [3.0, 4.0], [-3.0, 4.0], [-6.0, -8.0]])
    assert aggregate(messages, 10) == [-1.5, 0.0]


def test_empty_m_gives_zero() -> None:
    # pairs at distance 1, far from each other: two of four is not more than half
    assert aggregate(line(10, 11, 20, 21), 4) == [0.0]
    assert aggregate(line(10, 12.5, 15), 4) == [0.0]  # 2.5 is within T, but not within T/2
    assert aggregate(line(10, 11, 20, 21, 10.5), 4) == [10.5]


def test_lone_worker() -> None:
    assert aggregate(line(7), 1e-3) == [7.0]


def test_threshold_shrinks_with_the_root_of_the_computations() -> None:
    # threshold 8 at N = 4 is T = 8/2 = 4, the first golden case; at N = 1 it is T = 8, where only 9
    # is out: 8/4 = 2
    assert aggregate(line(0, 1, 2, 5, 9), 8, computations=4) == [1.0]
    assert aggregate(line(0, 1, 2, 5, 9), 8, computations=1) == [2.0]
    assert aggregate(line(0, 1, 2, 5, 9), 8, computations=64) == [0.0]


@each_row(("m", "f"), [(3, 1), (5, 2), (17, 8), (25, 4)])
def test_not_robust_by_the_counter_example_of_appendix_f1(m: int, f: int) -> None:
    # honest workers send grad, Byzantine ones grad + 3/4 T v with |v| = 1: the aggregate is grad +
    # 3/4 T delta v, although the honest messages do not differ at all, so no kappa will do
    threshold, gradient, v = 4.0, torch.tensor([1.0, -2.0]), torch.tensor([0.6, 0.8])
    messages = gradient.repeat(m, 1)
    messages[m - f :] += 0.75 * threshold * v
    rule = make_aggregator(f"mfm:threshold={threshold}", workers=m, byzantine=f)
    torch.testing.assert_close(rule(messages), gradient + 0.75 * threshold * f / m * v)
    assert float(messages[: m - f].var(0).sum()) == 0
    assert rule.kappa is None


def test_byzantine_messages_further_than_the_threshold_are_filtered() -> None:
    messages = torch.tensor([[1.0, 2.0]]).repeat(5, 1)
    messages[3:] += 4.5
    assert aggregate(messages, 4) == [1.0, 2.0]


def test_the_threshold_is_given_or_set_by_the_method() -> None:
    component = REGISTRIES["aggregators"].parse("mfm")
    rule = component.build(AggregatorSetting(5, 0, threshold=4.0))
    assert rule.aggregate(line(0, 1, 2, 5, 9), {}, 1)[0].tolist() == [1.0]
    own = (
        REGISTRIES["aggregators"]
        .parse("mfm:threshold=4")
        .build(AggregatorSetting(5, 0, threshold=1e-3))
    )
    assert own.aggregate(line(0, 1, 2, 5, 9), {}, 1)[0].tolist() == [1.0]
    with pytest.raises(SpecError, match=r"'mfm' needs threshold= here. Try: 'mfm:threshold=VALUE'"):
        make_aggregator("mfm", workers=5, byzantine=0)
    with pytest.raises(
        SpecError, match="threshold=0 is not legal; threshold must be a number > 0 or auto"
    ):
        make_aggregator("mfm:threshold=0", workers=5, byzantine=0)
