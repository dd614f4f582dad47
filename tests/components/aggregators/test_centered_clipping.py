"""Centered clipping: a rule that remembers."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError

FIRST = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, -6.0]])


def test_golden() -> None:
    # tau = 2, v = 0: (3, 4), 5 long, is clipped to (1.2, 1.6), (0, -6) to (0, -2): v = (1.2/3,
    # 0.6/3) = (0.4, 0.2). The next call goes on from there: pulls (0, 0), (1, 0), (0, 10), of which
    # the last is clipped to (0, 2): v = (0.4 + 1/3, 0.2 + 2/3)
    rule = make_aggregator("centered-clipping:tau=2", workers=3, byzantine=1)
    torch.testing.assert_close(rule(FIRST), torch.tensor([0.4, 0.2]))
    second = torch.tensor([[0.4, 0.2], [1.4, 0.2], [0.4, 10.2]])
    torch.testing.assert_close(rule(second), torch.tensor([0.4 + 1 / 3, 0.2 + 2 / 3]))


def test_iterations_of_a_call_are_calls() -> None:
    twice = make_aggregator("centered-clipping:tau=2,L=2", workers=3, byzantine=1)
    once = make_aggregator("centered-clipping:tau=2", workers=3, byzantine=1)
    once(FIRST)
    assert torch.equal(twice(FIRST), once(FIRST))


def test_a_large_tau_makes_it_the_mean() -> None:
    rule = make_aggregator("centered-clipping:tau=1e6", workers=3, byzantine=1)
    for shift in (0.0, 7.0):
        torch.testing.assert_close(rule(FIRST + shift), (FIRST + shift).mean(0))


def test_no_message_pulls_further_than_its_share_of_tau() -> None:
    messages = torch.zeros(4, 3)
    messages[2] = 3e38
    aggregate = make_aggregator("centered-clipping:tau=2", workers=4, byzantine=1)(messages)
    assert float(aggregate.norm()) == pytest.approx(2 / 4)


def test_what_is_done_to_an_aggregate_does_not_reach_the_state() -> None:
    rules = [make_aggregator("centered-clipping:tau=2", workers=3, byzantine=1) for _ in range(2)]
    rules[0](FIRST).fill_(99)
    rules[1](FIRST)
    assert torch.equal(rules[0](FIRST), rules[1](FIRST))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_call_without_a_finite_message_leaves_the_state_as_it_was(value: float) -> None:
    rules = [make_aggregator("centered-clipping:tau=2", workers=3, byzantine=1) for _ in range(2)]
    first = [rule(FIRST) for rule in rules]
    assert not bool(rules[0](torch.full_like(FIRST, value)).isfinite().any())
    assert torch.equal(first[0], first[1])
    assert torch.equal(rules[0](FIRST), rules[1](FIRST))


def test_tau_is_asked_for() -> None:
    with pytest.raises(
        SpecError, match=r"'centered-clipping' needs tau=. Try: 'centered-clipping:tau=VALUE'"
    ):
        make_aggregator("centered-clipping", workers=3, byzantine=1)
    with pytest.raises(SpecError, match="'centered-clipping': f=2 is not legal with 4 workers"):
        make_aggregator("centered-clipping:tau=1", workers=4, byzantine=2)
    assert make_aggregator("centered-clipping:tau=1", workers=5, byzantine=1).kappa is None
