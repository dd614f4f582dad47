"""Promises of every aggregation rule, alone and after every pre-aggregator: one table over the
registries.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.api import BoundAggregator
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.testing._rules import made
from tests.tables import Test, each_row

# Required parameters of components, besides m and f; {short} < {length} grow with the messages, and
# lie between the honest spread and the outliers of ``draw``.
NEEDED = {
    "mfm": "mfm:threshold={length}",
    "centered-clipping": "centered-clipping:tau={length}",
    "rfa": "rfa:nu={short}",
    "clipping": "clipping:c={short}",
}

# Components that do not make a promise, alone or in a chain.
ORDER_MATTERS = {
    "monna": "one worker is trusted",
    "bulyan": "of two nearest to each other Krum chooses the first, where it looks at one "
    "neighbour",
    "bucketing": "draws places, whoever stands there",
}
ORIGIN_MATTERS = {
    "cge": "compares lengths",
    "fltrust": "compares angles",
    "signguard": "compares lengths and signs",
    "sign-majority": "counts signs",
    "centered-clipping": "begins at 0",
    "rfa": "begins at 0",
    "clipping": "shortens towards 0",
    "arc": "shortens towards 0",
}
LENGTH_MATTERS = {
    "centered-clipping": "gets no further than tau from 0 at once",
    "clipping": "lets nothing longer than c pass",
    "fltrust": "gives every message the length of the server's gradient",
    "sign-majority": "has entries of -1, 0 and 1",
}
SCALE_MATTERS = {"sign-majority": "has entries of -1, 0 and 1"}

RULES = [NEEDED.get(name, name) for name in REGISTRIES["aggregators"].entries()]
STAGES = [NEEDED.get(name, name) for name in REGISTRIES["pre_aggregators"].entries()]
# behind every stage a rule that mixes all messages, and once a rule that selects one
TEXTS = [*RULES, *(f"{stage}+cwtm" for stage in STAGES), "nnm+krum"]

every_text = each_row("text", TEXTS)
DTYPES = (torch.float32, torch.float64)


def without(exceptions: dict[str, str]) -> Callable[[Test], Test]:
    """All texts, except texts with a component among ``exceptions``."""
    return each_row("text", [text for text in TEXTS if not names(text) & exceptions.keys()])


def names(text: str) -> set[str]:
    return {part.partition(":")[0] for part in text.split("+")}


def make(text: str, m: int, f: int, scale: float = 1.0) -> BoundAggregator:
    return made(text.format(length=60 * scale, short=20 * scale), workers=m, byzantine=f)


@functools.cache
def least(text: str, f: int, at_least: int) -> int:
    """The smallest number of workers, from ``at_least``, for which the rule is defined."""
    for m in itertools.count(at_least):
        with contextlib.suppress(SpecError):
            make(text, m, f)
            return m
    raise AssertionError


def draw(seed: int, m: int, d: int, f: int = 2) -> Tensor:
    """Make m - f normal messages and f distant messages, in random order: [m, d]."""
    generator = torch.Generator().manual_seed(seed)
    messages = torch.randn(m, d, generator=generator, dtype=torch.float64)
    messages[:f] += 1000
    return messages[torch.randperm(m, generator=generator)]


PROVED = {
    f: [text for text in TEXTS if make(text, least(text, f, 9), f).kappa is not None]
    for f in (0, 2)
}


def close(actual: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    """Assert equality up to rounding, for messages whose largest entries are about 1000 times
    ``scale``.
    """
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-8 * scale)


@every_text
def test_shape_dtype_and_input_untouched(text: str) -> None:
    m = least(text, 2, 9)
    for dtype, d in itertools.product(DTYPES, (1, 5)):
        messages = draw(0, m, d).to(dtype)
        before = messages.clone()
        aggregate = make(text, m, 2)(messages)
        assert aggregate.shape == (d,)
        assert aggregate.dtype == dtype
        assert bool(aggregate.isfinite().all())
        aggregate.fill_(7)  # the aggregate must not be a view of a message, either
        assert torch.equal(messages, before)


@every_text
def test_single_and_double_precision_agree(text: str) -> None:
    m = least(text, 2, 9)
    for seed in range(4):
        messages = draw(seed, m, 20).float()
        aggregates = [make(text, m, 2)(messages.to(dtype)).double() for dtype in DTYPES]
        torch.testing.assert_close(*aggregates, rtol=1e-5, atol=1e-4)


EXAMPLES = pytest.mark.parametrize("examples", [5, pytest.param(25, marks=pytest.mark.thorough)])
SEEDS, COLUMNS, FACTORS = st.integers(0, 2**32), st.integers(1, 6), st.floats(-1e3, 1e3)


def holds(check: Callable[..., None], examples: int, **drawn: st.SearchStrategy[Any]) -> None:
    """Check a promise at a number of examples."""
    settings(deadline=None, derandomize=True, max_examples=examples)(given(**drawn)(check))()


@without(ORDER_MATTERS)
@EXAMPLES
def test_order_of_workers_does_not_matter(text: str, examples: int) -> None:
    def check(seed: int, more: int, d: int, data: st.DataObject) -> None:
        m = least(text, 2, 7) + more
        messages, rule = draw(seed, m, d), make(text, m, 2)
        order = data.draw(st.permutations(range(m)))
        close(make(text, m, 2)(messages[order]), rule(messages))

    holds(check, examples, seed=SEEDS, more=st.integers(0, 4), d=COLUMNS, data=st.data())


@without(ORIGIN_MATTERS)
@EXAMPLES
def test_moves_with_the_messages(text: str, examples: int) -> None:
    def check(seed: int, d: int, factor: float) -> None:
        m = least(text, 2, 9)
        messages = draw(seed, m, d)
        offset = factor * torch.linspace(-1, 2, d, dtype=torch.float64)
        close(make(text, m, 2)(messages + offset), make(text, m, 2)(messages) + offset)

    holds(check, examples, seed=SEEDS, d=COLUMNS, factor=FACTORS)


@without(SCALE_MATTERS)
@EXAMPLES
def test_scales_with_the_messages(text: str, examples: int) -> None:
    def check(seed: int, d: int, factor: float) -> None:
        m = least(text, 2, 9)
        messages, scale = draw(seed, m, d), factor if abs(factor) > 1e-3 else 1e-3
        aggregate = make(text, m, 2)(messages)
        close(make(text, m, 2, abs(scale))(messages * scale), aggregate * scale, abs(scale))

    holds(check, examples, seed=SEEDS, d=COLUMNS, factor=FACTORS)


@without(SCALE_MATTERS)
def test_scales_with_the_messages_from_end_to_end_of_single_precision(text: str) -> None:
    """A power of two changes no digit; the square of 2^60 overflows in single precision."""
    m = least(text, 2, 9)
    messages = draw(3, m, 20).float()
    expected = make(text, m, 2)(messages)
    for scale in (2.0**-80, 2.0**-60, 2.0**20, 2.0**60):
        scaled = make(text, m, 2, scale)(messages * scale)
        torch.testing.assert_close(scaled / scale, expected, rtol=1e-5, atol=1e-4)


@without(LENGTH_MATTERS)
def test_equal_messages_are_their_aggregate_to_the_last_digit(text: str) -> None:
    for dtype, more in itertools.product(DTYPES, (0, 1, 2, 7)):
        m = least(text, 1, 5) + more
        message = torch.cat([draw(2, 1, 50, f=0)[0], torch.tensor([1e6, 0.0])]).to(dtype)
        assert torch.equal(make(text, m, 1)(message.repeat(m, 1)), message), (m, dtype)


# Rules that are the mean of all messages with f = 0, and pre-aggregators that may come before them.
MEANS = [
    rule
    for rule in RULES
    if names(rule)
    & {"mean", "cwtm", "multi-krum", "mda", "meamed", "monna", "phocas", "cge", "caf"}
]


@each_row("text", [*MEANS, "smea", "dnc", "nnm+mean", "nnm+cwtm", "bucketing:s=1+mean", "arc+cge"])
def test_a_mean_that_is_a_number_is_exact(text: str) -> None:
    for dtype, m in itertools.product(DTYPES, (3, 5, 7, 17)):
        messages = torch.randint(-99, 100, (m, 200), generator=torch.Generator().manual_seed(m)).to(
            dtype
        )
        messages[-1] -= messages.sum(0) % m
        assert torch.equal(make(text, m, 0)(messages), messages.sum(0) / m)


@every_text
def test_finite_messages_have_a_finite_aggregate(text: str) -> None:
    """However large all or some messages are, the aggregate is finite; two calls, because a rule
    may remember.
    """
    m = least(text, 2, 9)
    for dtype, seed in itertools.product(DTYPES, range(4)):
        rule, generator, largest = (
            make(text, m, 2),
            torch.Generator().manual_seed(seed),
            torch.finfo(dtype).max,
        )
        for share in (1.0, 0.5, 0.2):
            messages = torch.randn(m, 20, generator=generator).to(dtype)
            huge = torch.rand(m, 20, generator=generator) < share
            messages = torch.where(huge, largest * messages.sign(), messages)
            assert bool(rule(messages).isfinite().all()), (dtype, seed, share)


@each_row(
    ("table", "promise"),
    [
        (ORDER_MATTERS, lambda text, m, x: (make(text, m, 2)(x.flip(0)), make(text, m, 2)(x))),
        (
            ORIGIN_MATTERS,
            lambda text, m, x: (make(text, m, 2)(x - 1000), make(text, m, 2)(x) - 1000),
        ),
        (LENGTH_MATTERS, lambda text, m, x: (make(text, m, 2)(1000 + 0 * x), 1000 + 0 * x[0])),
        (SCALE_MATTERS, lambda text, m, x: (make(text, m, 2)(2 * x), 2 * make(text, m, 2)(x))),
    ],
)
def test_exceptions_are_needed(
    table: dict[str, str], promise: Callable[[str, int, Tensor], tuple[Tensor, Tensor]]
) -> None:
    """Each exception breaks its promise, alone or before the mean."""
    for name in table:
        rule = NEEDED.get(name, name)
        text = rule if rule in RULES else f"{rule}+cwmed"
        m = least(text, 2, 9)
        assert any(not torch.allclose(*promise(text, m, draw(seed, m, 4))) for seed in range(30)), (
            name
        )


def adversarial(seed: int, m: int, f: int) -> list[Tensor]:
    """Messages [m, 3], the last f Byzantine: far away, in the noise, or at the extreme honest
    message; and duplicates.
    """
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
    return [normal, few, groups] + [
        torch.cat([honest, row.double().expand(f, 3)]) for row in byzantine
    ]


def tolerated(text: str, m: int) -> list[int]:
    """Every f under m/2 for which the rule is defined."""
    legal = []
    for f in range((m + 1) // 2):
        try:
            make(text, m, f)
        except SpecError:
            continue
        legal.append(f)
    return legal


def assert_robust(rule: BoundAggregator, messages: Tensor, sets: Tensor, slack: float) -> None:
    """|A - mean_S|^2 <= kappa/|S| sum_{i in S} |g_i - mean_S|^2 for all sets S, the rows of
    ``sets``.
    """
    # [d], [number of sets, |S|, d]
    aggregate, groups = rule(messages).double(), messages.double()[sets]
    means = groups.mean(1)
    errors = (aggregate - means).square().sum(1).sqrt()
    spreads = (groups - means[:, None]).square().sum(2).mean(1)
    assert rule.kappa is not None
    assert bool((errors <= (rule.kappa * spreads).sqrt() * (1 + 1e-6) + slack).all())


@pytest.mark.thorough
@pytest.mark.parametrize("text", PROVED[0])
def test_error_is_within_the_bound_of_kappa(text: str) -> None:
    """Definition 3.2 of the paper, for every set S of m - f messages."""
    for m in range(least(text, 0, 5), least(text, 0, 5) + 3):
        rules = {f: make(text, m, f) for f in tolerated(text, m)}
        proved = {f: rule for f, rule in rules.items() if rule.kappa is not None}
        assert proved
        for f, rule in proved.items():
            sets = torch.tensor(list(itertools.combinations(range(m), m - f)))
            for messages in itertools.chain.from_iterable(
                adversarial(seed, m, f) for seed in range(5)
            ):
                assert_robust(rule, messages, sets, slack=1e-10 * float(messages.abs().max()))


@each_row("text", PROVED[2])
def test_no_finite_message_is_large_enough_to_break_the_bound(text: str) -> None:
    """Two Byzantine workers send the largest numbers of single precision; their squares may be
    infinite.
    """
    messages = torch.randn(9, 30, generator=torch.Generator().manual_seed(0))
    honest = torch.tensor([[1, 2, 3, 4, 6, 7, 8]])
    for first, second in (
        (size, other) for size in (1e10, 1e20, 3e38) for other in (-size, size, 1.0)
    ):
        messages[0], messages[5] = first, second
        assert_robust(make(text, 9, 2), messages, honest, slack=0)


BAD = {
    "nan": [math.nan],
    "inf": [math.inf],
    "-inf": [-math.inf],
    "one of each": [math.inf, -math.inf, math.nan],
}


def spoiled(messages: Tensor, rows: Sequence[int], numbers: Sequence[float]) -> Tensor:
    """The messages with some of the numbers in the rows; each row has another number and column."""
    messages = messages.clone()
    for place, row in enumerate(rows):
        messages[row, place % messages.shape[1]] = numbers[place % len(numbers)]
    return messages


@every_text
def test_who_sends_what_is_not_finite_is_byzantine(text: str) -> None:
    """The rule replaces such a message, always in the same way, whatever else is in the message."""
    m = least(text, 2, 9)
    for dtype, (name, numbers) in itertools.product(DTYPES, BAD.items()):
        messages = draw(1, m, 4).to(dtype)
        without, rows = messages.clone(), [1, m - 2]
        without[rows] = 0
        before = spoiled(messages, rows, numbers)
        bad = before.clone()
        aggregate = make(text, m, 2)(bad)
        assert bool(aggregate.isfinite().all()), (name, dtype)
        assert torch.equal(aggregate, make(text, m, 2)(without)), (name, dtype)
        torch.testing.assert_close(bad, before, rtol=0, atol=0, equal_nan=True)


@each_row("text", PROVED[2])
def test_what_is_not_finite_does_not_break_the_bound(text: str) -> None:
    messages = torch.randn(9, 30, generator=torch.Generator().manual_seed(0))
    for numbers in BAD.values():
        rule = make(text, 9, 2)
        assert_robust(
            rule, spoiled(messages, [0, 5], numbers), torch.tensor([[1, 2, 3, 4, 6, 7, 8]]), slack=0
        )


@every_text
def test_where_no_message_is_finite_nor_is_the_aggregate(text: str) -> None:
    """Otherwise a diverged run would not be noticed; a rule must not raise, either."""
    m = least(text, 2, 9)
    for dtype, (name, numbers) in itertools.product(DTYPES, BAD.items()):
        rule = make(text, m, 2)
        for _ in range(2):  # also with the state that this leaves
            found = rule(spoiled(draw(1, m, 4).to(dtype), range(m), numbers))
            assert not bool(found.isfinite().any()), (name, dtype)


@each_row("text", STAGES)
def test_pre_aggregators_give_as_many_messages_as_they_say(text: str) -> None:
    messages = draw(0, 9, 4)
    before = messages.clone()
    stage = (
        REGISTRIES["pre_aggregators"]
        .parse(text.format(length=60, short=20))
        .build(AggregatorSetting(9, 2))
    )
    mixed = stage.mix(messages)
    assert mixed.shape == (stage.workers, 4)
    assert mixed.dtype == messages.dtype
    assert torch.equal(messages, before)


@pytest.mark.thorough
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_it_can_be_compiled(text: str, backend: str) -> None:
    """Each rule is one graph, which the server's function needs; the quick test only traces it."""
    m, batches = least(text, 2, 9), torch.tensor(4.0)
    rule = make(text, m, 2)._rule
    torch.compiler.reset()
    traced = torch.compile(rule.aggregate, backend=backend, fullgraph=True, dynamic=False)
    state: dict[str, Tensor] = {}
    ours: dict[str, Tensor] = {}
    calls = [draw(0, m, 5), spoiled(draw(1, m, 5), [3, 4], [math.nan, math.inf])]
    for messages in calls:
        aggregate, state = traced(messages, state, batches)
        expected, ours = rule.aggregate(messages, ours, batches)
        torch.testing.assert_close(aggregate, expected)
    torch.testing.assert_close(state, ours)
    nothing = spoiled(draw(0, m, 5), range(m), [math.nan, math.inf])
    assert not bool(traced(nothing, state, batches)[0].isfinite().any())


def remembered(text: str) -> dict[str, Tensor]:
    """The state of a rule after two rounds."""
    m = least(text, 2, 9)
    rule, state = make(text, m, 2)._rule, dict[str, Tensor]()
    for seed in range(2):
        _, state = rule.aggregate(draw(seed, m, 5), state, 1)
    return state


@each_row("text", [text for text in TEXTS if remembered(text)])
def test_a_rule_with_a_row_for_each_worker_says_so(text: str) -> None:
    """A rule with ``by_number`` needs all workers to answer in every round: otherwise a row belongs
    to another worker.
    """
    m, state = least(text, 2, 9), remembered(text)
    assert make(text, m, 2)._rule.by_number or not any(
        value.ndim and value.shape[0] == m for value in state.values()
    )
