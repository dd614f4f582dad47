"""What every aggregation rule promises, alone and behind every pre-aggregator: one table over the registries."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dynabro_cli.aggregators._api import AggregatorSetting
from dynabro_cli.api import BoundAggregator, make_aggregator
from dynabro_cli.errors import SpecError
from dynabro_cli.resolve import REGISTRIES

# What a rule cannot do without, beside m and f; {threshold} is a length, and grows with the messages.
NEEDED = {"mfm": "mfm:threshold={threshold}"}

RULES = [NEEDED.get(name, name) for name in REGISTRIES["aggregators"].entries()]
STAGES = [NEEDED.get(name, name) for name in REGISTRIES["pre_aggregators"].entries()]
TEXTS = RULES + [f"{stage}+{rule}" for stage in STAGES for rule in RULES]

every_text = pytest.mark.parametrize("text", TEXTS)


def make(text: str, m: int, f: int, scale: float = 1.0) -> BoundAggregator:
    """Make a rule whose threshold, where it has one, lies between the honest spread and the outliers of ``draw``."""
    return make_aggregator(text.format(threshold=60 * scale), workers=m, byzantine=f)


def draw(seed: int, m: int, d: int, f: int = 2) -> Tensor:
    """m - f normal messages and f far ones, in random order: [m, d]."""
    generator = torch.Generator().manual_seed(seed)
    messages = torch.randn(m, d, generator=generator, dtype=torch.float64)
    messages[:f] += 1000
    return messages[torch.randperm(m, generator=generator)]


PROVED = {f: [text for text in TEXTS if make(text, 9, f).kappa is not None] for f in (0, 2)}


def close(actual: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    """Equal up to rounding of messages whose largest entries are about 1000 times ``scale``."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-8 * scale)


@every_text
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 5])
def test_shape_dtype_and_input_untouched(text: str, dtype: torch.dtype, d: int) -> None:
    messages = draw(0, 9, d).to(dtype)
    before = messages.clone()
    aggregate = make(text, 9, 2)(messages)
    assert aggregate.shape == (d,)
    assert aggregate.dtype == dtype
    assert bool(aggregate.isfinite().all())
    aggregate.fill_(7)  # nor may the aggregate be a view of a message
    assert torch.equal(messages, before)


@every_text
@pytest.mark.parametrize("seed", range(10))
def test_single_and_double_precision_agree(text: str, seed: int) -> None:
    messages = draw(seed, 9, 20).float()
    aggregates = [make(text, 9, 2)(messages.to(dtype)).double() for dtype in (torch.float32, torch.float64)]
    torch.testing.assert_close(*aggregates, rtol=1e-5, atol=1e-4)


@every_text
@settings(deadline=None, derandomize=True, max_examples=25)
@given(seed=st.integers(0, 2**32), m=st.integers(7, 11), d=st.integers(1, 6), data=st.data())
def test_order_of_workers_does_not_matter(text: str, seed: int, m: int, d: int, data: st.DataObject) -> None:
    messages, rule = draw(seed, m, d), make(text, m, 2)
    order = data.draw(st.permutations(range(m)))
    close(make(text, m, 2)(messages[order]), rule(messages))


@every_text
@settings(deadline=None, derandomize=True, max_examples=25)
@given(seed=st.integers(0, 2**32), d=st.integers(1, 6), scale=st.floats(1e-3, 1e3), shift=st.floats(-1e3, 1e3))
def test_moves_and_scales_with_the_messages(text: str, seed: int, d: int, scale: float, shift: float) -> None:
    messages = draw(seed, 9, d)
    offset = shift * torch.linspace(-1, 2, d, dtype=torch.float64)
    aggregate = make(text, 9, 2)(messages)
    close(make(text, 9, 2)(messages + offset), aggregate + offset)
    close(make(text, 9, 2, scale)(messages * scale), aggregate * scale, scale)
    close(make(text, 9, 2)(-messages), -aggregate)


@every_text
@pytest.mark.parametrize("m", [5, 8])
def test_identical_messages_are_their_aggregate(text: str, m: int) -> None:
    message = torch.tensor([0.1, -3.0, 1e6, 0.0], dtype=torch.float64)
    torch.testing.assert_close(make(text, m, 1)(message.repeat(m, 1)), message, rtol=1e-14, atol=0)


def adversarial(seed: int, m: int, f: int) -> list[Tensor]:
    """Messages [m, 3], the last f Byzantine: far, hidden in the noise, with the extreme honest one; and duplicates."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(m, 3, generator=generator, dtype=torch.float64)
    honest = normal[: m - f]
    extreme = honest[honest.norm(dim=1).argmax()]
    byzantine = [
        torch.full((3,), 1e3),
        torch.tensor([1e6, -1e6, 0.0]),
        honest.mean(0) - 1.5 * honest.std(0),
        extreme,
        extreme * (1 + 1e-4),
        2 * extreme - honest.mean(0),
    ]
    few = torch.randint(-1, 2, (m, 3), generator=generator).double()  # many duplicates
    groups = few + 1e-3 * normal
    return [normal, few, groups] + [torch.cat([honest, row.double().expand(f, 3)]) for row in byzantine]


def tolerated(text: str, m: int) -> list[int]:
    """Every f under m/2 at which the rule is defined."""
    legal = []
    for f in range((m + 1) // 2):
        try:
            make(text, m, f)
        except SpecError:
            continue
        legal.append(f)
    return legal


def assert_robust(rule: BoundAggregator, messages: Tensor, sets: Tensor, slack: float) -> None:
    """|A - mean_S|^2 <= kappa/|S| sum_{i in S} |g_i - mean_S|^2 for all sets S, the rows of ``sets``."""
    aggregate, groups = rule(messages).double(), messages.double()[sets]  # [d], [number of sets, |S|, d]
    means = groups.mean(1)
    errors = (aggregate - means).square().sum(1).sqrt()
    spreads = (groups - means[:, None]).square().sum(2).mean(1)
    assert rule.kappa is not None
    assert bool((errors <= (rule.kappa * spreads).sqrt() * (1 + 1e-6) + slack).all())


@pytest.mark.parametrize("text", PROVED[0])
@pytest.mark.parametrize("m", [5, 6, 7])
def test_error_is_within_the_bound_of_kappa(text: str, m: int) -> None:
    """Definition 3.2 of the paper, for every set S of m - f messages."""
    rules = {f: make(text, m, f) for f in tolerated(text, m)}
    proved = {f: rule for f, rule in rules.items() if rule.kappa is not None}
    assert proved
    for f, rule in proved.items():
        sets = torch.tensor(list(itertools.combinations(range(m), m - f)))
        for seed in range(12):
            for messages in adversarial(seed, m, f):
                assert_robust(rule, messages, sets, slack=1e-10 * float(messages.abs().max()))


@pytest.mark.parametrize("text", PROVED[2])
@pytest.mark.parametrize("size", [1e10, 1e20, 3e38])
def test_no_finite_message_is_large_enough_to_break_the_bound(text: str, size: float) -> None:
    """Two Byzantine workers send what single precision just holds, though its square may be infinite."""
    messages = torch.randn(9, 30, generator=torch.Generator().manual_seed(0))
    honest = torch.tensor([[1, 2, 3, 4, 6, 7, 8]])
    for first, second in ((size, -size), (size, size), (size, 1.0)):
        messages[0], messages[5] = first, second
        assert_robust(make(text, 9, 2), messages, honest, slack=0)


@pytest.mark.parametrize("text", STAGES)
def test_pre_aggregators_give_as_many_messages_as_they_say(text: str) -> None:
    messages = draw(0, 9, 4)
    before = messages.clone()
    stage = REGISTRIES["pre_aggregators"].parse(text).build(AggregatorSetting(9, 2))
    mixed = stage.mix(messages)
    assert mixed.shape == (stage.workers, 4)
    assert mixed.dtype == messages.dtype
    assert torch.equal(messages, before)


@every_text
def test_it_can_be_compiled(text: str) -> None:
    """As one graph, which the server's function needs; traced here and not compiled, so that it is quick."""
    rule, messages, batches = make(text, 9, 2)._rule, draw(0, 9, 5), torch.tensor(4.0)
    torch.compiler.reset()
    traced = torch.compile(rule.aggregate, backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(messages, {}, batches), rule.aggregate(messages, {}, batches))


@pytest.mark.parametrize("text", RULES)
def test_a_rule_with_a_row_for_each_worker_says_so(text: str) -> None:
    """It needs all workers to answer in every round: of some, rows are those of other workers from round to round."""
    rule, state = make(text, 9, 2)._rule, {}
    for seed in range(2):
        _, state = rule.aggregate(draw(seed, 9, 5), state, 1)
    assert rule.by_number or not any(value.ndim and value.shape[0] == 9 for value in state.values())
