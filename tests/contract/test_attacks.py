"""Promises of every attack: one table over the registry."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.api import make_attack
from dynabro_cli.components.attacks._api import (
    ON_DATA,
    ON_VECTORS,
    Attack,
    Defence,
    State,
    honest_mean,
)
from dynabro_cli.components.registries import REGISTRIES
from tests.tables import each_row

# Required parameters of attacks.
NEEDED = {
    "shift": "shift:lambda=2",
    "momentum-tailored": "momentum-tailored:lambda=2,beta=0.9",
    "bit-flip": "bit-flip:rate=1,bits=exponent",  # enough flips for numbers that are not finite
}

# Parameters that turn an attack into another attack.
VARIANTS = [
    *("gaussian:around=mean,sigma=1", "gaussian:around=own,sigma=1"),
    *("bit-flip:rate=1,bits=sign", "bit-flip:rate=0.5,bits=mantissa"),
    *("min-max:perturbation=unit", "min-sum:perturbation=sign"),
    *("mimic:worker=8", "mimic:target=learned"),
    *("fang-krum:direction=mean", "fang-trimmed-mean:direction=mean,b=3"),
    "mixed:parts=nan/mimic:target=learned:warmup=2/gaussian/momentum-tailored:lambda=1:beta=0.5",
    *("poisonedfl:window=1", "rop:angle=180,place=0.5"),
    "mixed:parts=label-flip/optimal-ipm/fang-trimmed-mean",
]

TEXTS = [*(NEEDED.get(name, name) for name in REGISTRIES["attacks"].entries()), *VARIANTS]

every_text = each_row("text", TEXTS)
every_m = pytest.mark.parametrize(
    "m", [1, 9, *(pytest.param(m, marks=pytest.mark.slow) for m in (2, 3, 4))]
)


def draw(m: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(m, 6, generator=torch.Generator().manual_seed(m)).to(dtype)


def made(text: str, m: int) -> Attack:
    return make_attack(text.replace("worker=8", f"worker={m - 1}"), workers=m)._attack


def median(messages: Tensor) -> Tensor:
    """The defence for attacks that see it."""
    return messages.median(0).values


def sent(
    attack: Attack,
    own: Tensor,
    byzantine: Tensor,
    state: State,
    messages: Callable[..., Tensor] | None = None,
) -> Tensor:
    """The messages of the attack, from its ``messages`` or from a function given instead."""
    seen = (Defence(honest_mean(own, byzantine), median),) if attack.sees_defence else ()
    return (messages or attack.messages)(own, byzantine, state, *seen)


def same(first: Tensor, second: Tensor) -> bool:
    """Return True if two tensors are equal; NaN equals NaN."""
    return torch.equal(first.isnan(), second.isnan()) and torch.equal(
        first.nan_to_num(), second.nan_to_num()
    )


def next_state(attack: Attack, own: Tensor, byzantine: Tensor, state: State) -> State:
    """The state after a round of these vectors and identities."""
    if attack.observe is not None:
        state = attack.observe(own, byzantine, state)
    state = attack.advance(byzantine, state)
    return state if attack.follow is None else attack.follow(honest_mean(own, byzantine), state)


@every_text
@every_m
def test_defined_for_every_number_of_byzantine_workers(text: str, m: int) -> None:
    """From none to all Byzantine: messages have the precision of the gradients and are finite,
    honest rows are unchanged bit for bit, and so is the input.
    """
    attack, own = made(text, m), draw(m)
    before, state = own.clone(), dict(attack.initial)
    # one after another, so that an attack with a memory meets them with its memory
    for count in [*range(m + 1), 0]:
        byzantine = torch.randperm(m, generator=torch.Generator().manual_seed(count)) < count
        messages = sent(attack, own, byzantine, state)
        state = next_state(attack, own, byzantine, state)
        assert (messages.shape, messages.dtype) == (own.shape, own.dtype)
        assert bool(messages.isfinite().all()) or (count > 0 and not attack.finite)
        assert torch.equal(messages[~byzantine], own[~byzantine])
        assert torch.equal(own, before)
        assert all(bool(value.isfinite().all()) for value in state.values())


@every_text
@pytest.mark.parametrize(
    "m", [9, *(pytest.param(m, marks=pytest.mark.slow) for m in (1, 2, 3, 4))]
)  # the test above has a single vector, which has no spread either
def test_vectors_that_are_all_the_same(text: str, m: int) -> None:
    """Also with equal vectors, even zeros, which have no spread and no direction, messages stay
    finite.
    """
    attack = made(text, m)
    for value in (0.0, 3.0):
        state, own = dict(attack.initial), torch.full((m, 4), value)
        for count in (m, 1, m - 1, m):
            messages = sent(attack, own, torch.arange(m) < count, state)
            state = next_state(attack, own, torch.arange(m) < count, state)
            assert bool(messages.isfinite().all()) or not attack.finite


@each_row("text", [text for text in TEXTS if not made(text, 9).finite])
def test_an_attack_that_is_declared_not_finite_sends_what_is_not(text: str) -> None:
    """The server leaves such rows out of the honest mean, instead of giving them a weight of 0.
    Attacks that are declared finite are tested above. Some attacks need a few rounds.
    """
    assert not all(
        bool(messages.isfinite().all())
        for messages in rounds_of(text, draw(9), torch.arange(9) < 4, rounds=10)
    )


@every_text
def test_messages_have_the_precision_of_the_gradients(text: str) -> None:
    """Double precision; the tests above use single precision."""
    attack, own, byzantine = made(text, 9), draw(9, torch.float64), torch.arange(9) < 4
    state = dict(attack.initial)
    for _ in range(3):
        assert sent(attack, own, byzantine, state).dtype == torch.float64
        state = next_state(attack, own, byzantine, state)


@every_text
def test_no_randomness_of_its_own(text: str) -> None:
    own, byzantine = draw(9), torch.arange(9) % 2 == 0
    first, second = made(text, 9), made(text, 9)
    states = [dict(first.initial), dict(second.initial)]
    for _ in range(3):
        assert same(sent(first, own, byzantine, states[0]), sent(second, own, byzantine, states[1]))
        states = [
            next_state(attack, own, byzantine, state)
            for attack, state in zip((first, second), states, strict=True)
        ]


def rounds_of(text: str, own: Tensor, byzantine: Tensor, rounds: int = 3) -> list[Tensor]:
    """The messages of an attack in some rounds."""
    attack, found = made(text, len(own)), []
    state = dict(attack.initial)
    for _ in range(rounds):
        found.append(sent(attack, own, byzantine, state))
        state = next_state(attack, own, byzantine, state)
    return found


# The vectors of these attacks have their own size, not the size of the gradients.
SIZES = {"shift", "momentum-tailored", "gaussian", "mixed", "rop", "bit-flip"}


@each_row("text", [text for text in TEXTS if text.partition(":")[0] not in SIZES])
@pytest.mark.parametrize(
    "exponent", [-75, 70, *(pytest.param(inner, marks=pytest.mark.slow) for inner in (-60, 60))]
)
def test_scales_with_the_gradients_from_end_to_end_of_single_precision(
    text: str, exponent: int
) -> None:
    """A power of two changes no digit; the square of 2^70 overflows."""
    own, byzantine, scale = draw(9), torch.arange(9) < 4, 2.0**exponent
    for found, expected in zip(
        rounds_of(text, own * scale, byzantine), rounds_of(text, own, byzantine), strict=True
    ):
        torch.testing.assert_close(found / scale, expected, rtol=1e-4, atol=1e-6, equal_nan=True)


def test_a_round_of_nan_does_not_spoil_what_mimic_has_learned() -> None:
    attack, own, byzantine = made("mimic:target=learned", 9), draw(9), torch.arange(9) < 4
    state = next_state(attack, own, byzantine, dict(attack.initial))
    after = next_state(attack, own * float("nan"), byzantine, state)
    assert all(
        torch.equal(after[name], state[name]) for name in ("mean", "direction", "score", "seen")
    )


@every_text
def test_state_is_data(text: str) -> None:
    """``messages`` may be called for every level of a round; only ``observe`` and ``advance``
    return a new state.
    """
    attack = made(text, 9)
    own, byzantine = draw(9), torch.arange(9) < 4
    state = next_state(
        attack, own, ~byzantine, next_state(attack, own, byzantine, dict(attack.initial))
    )
    kept = {name: value.clone() for name, value in state.items()}
    first = sent(attack, own, byzantine, state)
    assert same(sent(attack, own, byzantine, state), first)
    next_state(attack, own, byzantine, state)
    assert state.keys() == kept.keys()
    assert all(torch.equal(state[name], kept[name]) for name in kept)


@every_text
def test_own_vectors_of_byzantine_workers_matter_where_declared(text: str) -> None:
    """Gradients that an attack does not read are not computed, so it must declare what it reads."""
    byzantine, own = torch.arange(9) < 4, draw(9)
    others = torch.where(byzantine[:, None], own - 9, own)
    attack, messages = made(text, 9), []
    for vectors in (own, others):
        state = dict(attack.initial)
        for _ in range(2):
            messages.append(sent(attack, vectors, byzantine, state))
            state = next_state(attack, vectors, byzantine, state)
    assert all(same(*pair) for pair in zip(messages[:2], messages[2:], strict=True)) == (
        not attack.reads_own
    )


@pytest.mark.thorough
@pytest.mark.parametrize("text", TEXTS)
def test_it_can_be_compiled(text: str) -> None:
    """Each attack is one graph, which the server's function needs; here it is only traced, not
    compiled, to be quick.

    An attack that sees the defence is not compiled (the defence is), but it waits for no number
    either.
    """
    attack = made(text, 9)
    own, byzantine = draw(9), torch.arange(9) < 4
    torch.compiler.reset()
    traced = torch.compile(attack.messages, backend="eager", fullgraph=True)
    learns = (
        None
        if attack.observe is None
        else torch.compile(attack.observe, backend="eager", fullgraph=True)
    )
    state = dict(attack.initial)
    for _ in range(2):
        assert same(
            sent(attack, own, byzantine, state, traced), sent(attack, own, byzantine, state)
        )
        if learns is not None and attack.observe is not None:
            learned, expected = learns(own, byzantine, state), attack.observe(own, byzantine, state)
            assert learned.keys() == expected.keys()
            assert all(same(learned[name], expected[name]) for name in expected)
        state = next_state(attack, own, byzantine, state)


def remembers(text: str) -> bool:
    attack = made(text, 9)
    return bool(attack.initial) or attack.observe is not None or attack.follow is not None


@each_row("text", [text for text in TEXTS if remembers(text)])
def test_an_attack_with_a_row_for_each_worker_says_so(text: str) -> None:
    """An attack with ``by_number`` needs all workers to answer in every round."""
    attack = made(text, 9)
    state = next_state(attack, draw(9), torch.arange(9) < 4, dict(attack.initial))
    assert attack.by_number or not any(
        value.ndim and value.shape[0] == 9 for value in state.values()
    )


@every_text
def test_where_it_enters(text: str) -> None:
    """An attack on vectors can enter at gradients, so that attacks can be mixed; an attack on data
    changes labels.
    """
    attack = made(text, 9)
    assert attack.entries == (ON_DATA,) or (
        attack.entries[0] == "gradient" and set(attack.entries) <= set(ON_VECTORS)
    )
    assert attack.labels is not None or attack.entries != (ON_DATA,)
    assert attack.reads_own or attack.labels is None  # all m workers compute if labels are changed
    if attack.labels is None:
        return
    labels, byzantine = torch.arange(45).view(9, 5) % 10, torch.arange(9) % 2 == 0
    before = labels.clone()
    changed = attack.labels(labels, byzantine, 10)
    assert torch.equal(labels, before)
    assert (changed.dtype, changed.shape) == (labels.dtype, labels.shape)
    assert bool(((changed >= 0) & (changed < 10)).all())
    assert torch.equal(changed[~byzantine], labels[~byzantine])
    assert not torch.equal(changed[byzantine], labels[byzantine])
