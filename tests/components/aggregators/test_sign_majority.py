"""Majority vote of signs."""

from __future__ import annotations

import math

import pytest
import torch

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import Finished, RoundsDone
from tests.tables import each_row


def test_golden() -> None:
    # columns: + + - -> 1; - - + -> -1; + - 0 -> a tie, 0; 0 0 - -> -1; and lengths do not count
    messages = torch.tensor([[1.0, -1e-9, 2.0, 0.0], [2.0, -3.0, -5.0, 0.0], [-90.0, 7.0, 0, -1.0]])
    assert make_aggregator("sign-majority", workers=3, byzantine=1)(messages).tolist() == [
        1.0,
        -1.0,
        0.0,
        -1.0,
    ]


def test_an_even_split_is_zero() -> None:
    messages = torch.tensor([[5.0, 1.0], [2.0, -8.0], [-90.0, 1.0], [-1.0, -1.0]])
    rule = make_aggregator("sign-majority", workers=4, byzantine=1)
    assert rule(messages).tolist() == [0.0, 0.0]


@each_row("m", [1, 2, 7, 24])
def test_equals_the_counts_of_the_signs(m: int) -> None:
    messages = torch.randn(m, 50, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    rows = messages.tolist()
    expected = []
    for k in range(50):
        ahead = sum(row[k] > 0 for row in rows) - sum(row[k] < 0 for row in rows)
        expected.append(float((ahead > 0) - (ahead < 0)))
    rule = make_aggregator("sign-majority", workers=m, byzantine=0)
    assert rule(messages).tolist() == expected


@pytest.mark.parametrize("size", [1e30, -1e30])
def test_a_minority_is_outvoted_where_all_others_agree(size: float) -> None:
    """Eight of seventeen, and no size of theirs helps."""
    messages = torch.ones(17, 3)
    messages[:8] = size
    assert make_aggregator("sign-majority", workers=17, byzantine=8)(messages).tolist() == [1.0] * 3


def test_who_sends_nan_abstains() -> None:
    # 1, -1 and a message that is not finite, whose other number would decide
    messages = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, math.nan]])
    assert make_aggregator("sign-majority", workers=3, byzantine=1)(messages).tolist() == [0.0, 1.0]


def test_a_step_has_the_same_length_in_every_round() -> None:
    """An odd number of workers has no ties: the update is sqrt(d) long, however small the gradients
    are.
    """
    spec = RunSpec(
        task="quadratic",
        method="sgd",
        aggregator="sign-majority",
        attack="sf",
        workers=5,
        byzantine=1,
        budget=20,
        learning_rate=0.01,
    )
    happened = list(simulate(spec))
    assert isinstance(happened[-1], Finished)
    rounds = [row for event in happened if isinstance(event, RoundsDone) for row in event.rounds]
    assert [row.gradient_norm for row in rounds] == pytest.approx([math.sqrt(2)] * 20)


def test_nothing_is_proved_and_f_is_under_half() -> None:
    assert make_aggregator("sign-majority", workers=5, byzantine=2).kappa is None
    with pytest.raises(SpecError, match="'sign-majority': f=2 is not legal with 4 workers"):
        make_aggregator("sign-majority", workers=4, byzantine=2)
