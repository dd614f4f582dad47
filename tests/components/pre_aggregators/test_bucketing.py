"""Bucketing, and chains that make fewer messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.aggregators._draws import Draws
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row


def stage(text: str, m: int, f: int, seed: int = 0) -> Any:
    return REGISTRIES["pre_aggregators"].parse(text).build(AggregatorSetting(m, f, seed=seed))


def test_golden() -> None:
    # the permutation pi of five workers is cut into pi1 pi2 | pi3 pi4 | pi5, and each part averaged
    messages = torch.tensor([[1.0], [10.0], [100.0], [1000.0], [10000.0]])
    for call in range(5):
        first, second, third, fourth, fifth = (
            float(messages[i]) for i in Draws(7).permutation(call, 5, messages.device)
        )
        mixed = stage("bucketing", 5, 1, seed=7).mix(messages, call)
        assert mixed.flatten().tolist() == pytest.approx(
            [(first + second) / 2, (third + fourth) / 2, fifth]
        )


@each_row(("m", "s"), [(5, 1), (17, 3), (18, 3), (9, 4)])
def test_every_message_is_in_one_bucket(m: int, s: int) -> None:
    bucketing = stage(f"bucketing:s={s}", m, 0)
    sizes = [s] * (m // s) + ([m % s] if m % s else [])
    for call in range(10):
        # [m', m]: each message's share in each bucket
        weights = bucketing.mix(torch.eye(m, dtype=torch.float64), call)
        assert weights.shape == (bucketing.workers, m) == (len(sizes), m)
        assert ((weights > 0).sum(0) == 1).all()
        assert (weights > 0).sum(1).tolist() == sizes
        torch.testing.assert_close(weights.sum(1), torch.ones(len(sizes), dtype=torch.float64))


def test_calls_and_seeds_draw_other_buckets() -> None:
    messages = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    made = []
    for seed in (0, 0, 1):
        rule = make_aggregator("bucketing+krum", workers=9, byzantine=1, seed=seed)
        made.append([tuple(rule(messages).tolist()) for _ in range(10)])
    assert made[0] == made[1] != made[2]
    assert len(set(made[0])) > 5


def test_stages_of_a_call_draw_for_themselves() -> None:
    # as if in place: s=1 permutes only, so that twice the same permutation would be seen in the
    # rule that trusts place 0
    messages = torch.arange(9.0)[:, None]
    rule = make_aggregator("bucketing:s=1+bucketing:s=1+monna:f=0,pivot=0", workers=9, byzantine=0)
    assert rule(messages).tolist() == [4.0]
    one, two = (Draws(0).permutation(number, 9, messages.device) for number in (0, 1))
    assert not torch.equal(one, two)
    chain = make_aggregator("bucketing:s=1+bucketing:s=1+mda:f=4", workers=9, byzantine=0)
    single = make_aggregator("mda:f=4", workers=9, byzantine=0)
    torch.testing.assert_close(chain(messages), single(messages[one][two]))


def test_f_stays_f() -> None:
    # 17 messages, f = 3: 9 are left, of which cwtm cuts off 3 at each end; 90 in three workers
    # reaches 3 of them at most
    messages = torch.zeros(17, 1)
    messages[:3] = 90.0
    rule = make_aggregator("bucketing+cwtm", workers=17, byzantine=3)
    for _ in range(20):
        assert rule(messages).tolist() == [0.0]


def test_no_kappa() -> None:
    assert make_aggregator("bucketing:s=1+cwtm", workers=5, byzantine=1).kappa is None


def test_what_is_left_must_tolerate_f() -> None:
    make_aggregator("bucketing+cwtm", workers=17, byzantine=4)
    with pytest.raises(SpecError) as error:
        make_aggregator("bucketing:s=3+cwtm", workers=17, byzantine=4)
    assert error.value.problems == [
        (
            "pre-aggregator 'bucketing': s=3 makes 6 messages of 17, and f=4 Byzantine workers "
            "could be in half of them. "
            "Try: 'bucketing:s=2'"
        )
    ]
    with pytest.raises(SpecError, match="Try: 'bucketing:s=1'"):
        make_aggregator("bucketing+cwtm", workers=17, byzantine=8)


def test_a_rule_that_gets_too_few_messages_says_whose_they_are() -> None:
    with pytest.raises(SpecError) as error:
        make_aggregator("nnm+bucketing+krum", workers=17, byzantine=4)
    assert error.value.problems == [
        (
            "aggregator 'krum': f=4 is not legal with 9 workers; 2f + 2 < m must hold, so f "
            "may be at most 3. "
            "Try: 'krum:f=...' or more workers (the pre-aggregators before it leave 9 messages "
            "of 17)"
        )
    ]
