"""Inner-product manipulation against the defence in use; runs with it are in
``tests/simulation/test_defence.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.api import make_aggregator, make_attack
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row

OWN = torch.tensor([[1.0], [3.0], [50.0]])  # honest 1 and 3, whose mean is 2
LAST = torch.tensor([False, False, True])


def mean(messages: Tensor) -> Tensor:
    return messages.mean(0)


def median(messages: Tensor) -> Tensor:
    return messages.median(0).values


def in_reach(messages: Tensor) -> Tensor:
    """The mean, to which a message under -10 counts as 0."""
    return torch.where(messages < -10, 0, messages).mean(0)


# The Byzantine worker sends -2 epsilon.
GOLDEN: list[tuple[str, Callable[[Tensor], Tensor], float]] = [
    # |(4 - 2 epsilon)/3 - 2| grows with epsilon: 0, 1, 3 and 7 are each better than all before
    ("evals=4,delta=1", mean, -14),
    ("evals=1,delta=1", mean, 0),
    ("evals=3,delta=1,start=2", mean, -10),  # 2, 3 and 5
    # the median of 1, 3 and -2 epsilon is 1 for every epsilon: nothing is better than the start
    ("evals=20,delta=1", median, 0),
    # epsilon may be 5 at most: of 0, 1, 3 and 7 the last is too much; 4 x 0.8 = 3.2, then 2.56,
    # 2.048 and 1.6384 beyond 3, of which the last is the first under 5 that is tried
    ("evals=7,delta=1", in_reach, -6),
    ("evals=8,delta=1", in_reach, -2 * 4.6384),
    # 1.6384 x 0.8 = 1.31072 and so on are beyond 4.6384 and too much, until 1.6384 x 0.8^7 =
    # 0.343597 is not
    ("evals=14,delta=1", in_reach, -2 * 4.6384),
    ("evals=15,delta=1", in_reach, -2 * (4.6384 + 1.6384 * 0.8**7)),
    # half of the steps: 0, 1, 3, 7, then 3 + 4 x 0.51 = 5.04, and 3 + 4 x 0.51^2 = 4.0404
    ("evals=6,delta=1,ratio=0.51", in_reach, -2 * 4.0404),
]


@each_row(("parameters", "defence", "sent"), GOLDEN)
def test_golden(parameters: str, defence: Callable[[Tensor], Tensor], sent: float) -> None:
    messages = make_attack(f"optimal-ipm:{parameters}", workers=3)(OWN, LAST, defence)
    torch.testing.assert_close(messages, torch.tensor([[1.0], [3.0], [sent]]))


@pytest.mark.parametrize("count", [1, 5])
def test_one_to_all(count: int) -> None:
    """If all are Byzantine, the mean of their own vectors is the honest mean, and also the mean to
    move away from.
    """
    own = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    byzantine = torch.arange(5) < count
    sent = make_attack("optimal-ipm:evals=3,delta=2", workers=5)(own, byzantine, mean)
    honest = own[count % 5 :].mean(0)  # under the mean every step leads farther: 0, 2 and 6
    torch.testing.assert_close(sent, torch.where(byzantine[:, None], -6 * honest, own))


def test_the_rule_is_asked_evals_times_and_its_state_is_left_alone() -> None:
    rule, asked = make_aggregator("cwtm", workers=3, byzantine=1), []

    def defence(messages: Tensor) -> Tensor:
        asked.append(messages)
        return rule.preview(messages)

    make_attack("optimal-ipm:evals=7", workers=3)(OWN, LAST, defence)
    assert len(asked) == 7


def test_it_needs_a_defence() -> None:
    with pytest.raises(ValueError, match="attack 'optimal-ipm' sees the defence; pass it as well"):
        make_attack("optimal-ipm", workers=3)(OWN, LAST)


def test_legal_ranges() -> None:
    with pytest.raises(SpecError) as error:
        make_attack("optimal-ipm:evals=0,delta=0,ratio=0.5", workers=3)
    assert [line.split("; ")[1] for line in error.value.problems] == [
        "evals must be a whole number >= 1",
        "delta must be a number > 0",
        "ratio must be a number > 0.5 and < 1",
    ]
