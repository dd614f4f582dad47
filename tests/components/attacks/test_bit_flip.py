"""Flipped bits."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from scipy.stats import binomtest, chisquare
from torch import Tensor

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.attacks._api import Attack, AttackSetting
from dynabro_cli.components.attacks._noise import noise_key, uniform_noise
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import Finished, Round, RoundsDone
from dynabro_cli.core.streams import Streams
from tests.tables import each_row

SINGLE, DOUBLE = torch.float32, torch.float64
FORMS = {SINGLE: ("<f", "<I", 32, 23), DOUBLE: ("<d", "<Q", 64, 52)}
"""By type: Python's formats to pack a number and to read its bits; the bits of a number, and how
many of them are the mantissa's.
"""


def made(text: str, m: int, seed: int = 0) -> Attack:
    attack: Attack = REGISTRIES["attacks"].parse(text).build(AttackSetting(m, seed=seed))
    return attack


def draw(m: int, d: int, dtype: torch.dtype = SINGLE) -> Tensor:
    return torch.randn(m, d, generator=torch.Generator().manual_seed(0), dtype=DOUBLE).to(dtype)


def sent(
    text: str, own: Tensor, byzantine: Tensor | None = None, tick: int = 0, seed: int = 0
) -> Tensor:
    """The messages; all workers are Byzantine unless a mask says who."""
    who = torch.ones(len(own), dtype=torch.bool) if byzantine is None else byzantine
    return made(text, len(own), seed).messages(own, who, {"tick": torch.tensor(tick)})


def bits_of(number: float, dtype: torch.dtype) -> int:
    form, whole, *_ = FORMS[dtype]
    (bits,) = struct.unpack(whole, struct.pack(form, number))
    return int(bits)


def flipped_bits(before: Tensor, after: Tensor) -> list[list[int]]:
    """The positions that differ, number by number; NumPy keeps all bits of a NaN."""
    kind = f"u{before.element_size()}"
    different = before.flatten().numpy().view(kind) ^ after.flatten().numpy().view(kind)
    return [[place for place in range(64) if word >> place & 1] for word in different.tolist()]


def one_by_one(own: Tensor, tick: int, rate: float, first: int, count: int, seed: int) -> Tensor:
    """The definition, number by number, with Python's own bits."""
    form, whole, *_ = FORMS[own.dtype]
    hits = uniform_noise(noise_key(seed), torch.tensor(tick), own).tolist()
    places = uniform_noise(Streams(seed).integer("attack", 1), torch.tensor(tick), own).tolist()
    rows = own.tolist()
    for i, row in enumerate(rows):
        for k, number in enumerate(row):
            if hits[i][k] < rate:
                bits = bits_of(number, own.dtype) ^ 1 << first + math.floor(places[i][k] * count)
                (row[k],) = struct.unpack(form, struct.pack(whole, bits))
    return torch.tensor(rows, dtype=own.dtype)


def same(first: Tensor, second: Tensor) -> bool:
    """Return True if all bits that matter are equal; a NaN may lose its payload in Python."""
    return torch.equal(first.nan_to_num(1.5), second.nan_to_num(1.5)) and torch.equal(
        first.isnan(), second.isnan()
    )


def test_golden() -> None:
    """Without its sign bit -0.5 is 0.5, and 0 with it is -0; the honest worker's row stays."""
    own = torch.tensor([[3.0, -0.5], [3.0, -0.5], [-8.0, 0.0]])
    messages = sent("bit-flip:rate=1,bits=sign", own, torch.tensor([True, False, True]))
    assert messages.tolist() == [[-3.0, 0.5], [3.0, -0.5], [8.0, 0.0]]
    assert messages.signbit().tolist() == [[True, False], [False, True], [False, True]]


@each_row("dtype", [SINGLE, DOUBLE])
@each_row("bits", ["any", "sign", "exponent", "mantissa"])
def test_flips_are_the_slow_ones(bits: str, dtype: torch.dtype) -> None:
    _, _, size, mantissa = FORMS[dtype]
    first, count = {
        "any": (0, size),
        "sign": (size - 1, 1),
        "exponent": (mantissa, size - 1 - mantissa),
        "mantissa": (0, mantissa),
    }[bits]
    own = draw(4, 30, dtype)
    for tick, seed in ((0, 0), (7, 1), (2**40 + 3, 2**63 - 1)):
        found = sent(f"bit-flip:rate=0.4,bits={bits}", own, tick=tick, seed=seed)
        assert same(found, one_by_one(own, tick, 0.4, first, count, seed))
        assert not same(found, own)


def test_flips_are_the_same_for_ever() -> None:
    """Stored runs were made with them."""
    own = torch.ones(1, 8)
    found = flipped_bits(own, sent("bit-flip:rate=0.5", own))
    assert found == [[13], [24], [], [25], [4], [], [31], [19]]


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_each_number_is_hit_at_the_rate_and_each_position_equally_often(dtype: torch.dtype) -> None:
    """Wrong with probability 1e-6 each."""
    own, size = draw(3, 20_000, dtype), FORMS[dtype][2]
    places = flipped_bits(own, sent("bit-flip:rate=0.3", own))
    hit = [place for found in places for place in found]
    assert max(map(len, places)) == 1
    assert binomtest(len(hit), own.numel(), 0.3).pvalue > 1e-6
    counts = torch.bincount(torch.tensor(hit), minlength=size)
    assert chisquare(counts.numpy()).pvalue > 1e-6


@pytest.mark.parametrize("count", [0, 1, 4])
def test_none_to_all(count: int) -> None:
    """A worker's flips do not depend on who else is Byzantine."""
    own, byzantine = draw(4, 40), torch.arange(4) < count
    everyone = sent("bit-flip:rate=0.2", own)
    expected = torch.where(byzantine[:, None], everyone, own)
    assert same(sent("bit-flip:rate=0.2", own, byzantine), expected)


def test_a_worker_without_a_hit_is_honest() -> None:
    """At this rate none of 400 numbers is hit, with probability 0.96."""
    own = draw(4, 100)
    assert torch.equal(sent("bit-flip:rate=1e-4", own), own)


def test_the_exponent_makes_numbers_that_are_not_finite() -> None:
    """One of 8 positions turns the exponent of 1 to 2 into all ones: infinity for 1, else NaN."""
    messages = sent("bit-flip:rate=1,bits=exponent", torch.tensor([[1.0, 1.5]]).repeat(1, 100))
    assert bool(messages[0, ::2].isinf().any())
    assert bool(messages[0, 1::2].isnan().any())
    assert not made("bit-flip:bits=exponent", 1).finite
    assert not made("bit-flip", 1).finite
    assert made("bit-flip:bits=mantissa", 1).finite


def test_rounds_and_seeds_differ_and_levels_of_a_round_do_not() -> None:
    attack, own, byzantine = made("bit-flip:rate=0.5", 2), draw(2, 20), torch.ones(2).bool()
    state = dict(attack.initial)
    first = attack.messages(own, byzantine, state)
    assert same(attack.messages(own, byzantine, state), first)
    assert not same(attack.messages(own, byzantine, attack.advance(byzantine, state)), first)
    other = made("bit-flip:rate=0.5", 2, seed=1)
    assert not same(other.messages(own, byzantine, state), first)


def rounds_of(**fields: object) -> list[Round]:
    spec = RunSpec(workers=5, byzantine=1, budget=40, **fields)  # type: ignore[arg-type]
    happened = list(simulate(spec, threads=1))
    assert isinstance(happened[-1], Finished)
    return [row for event in happened if isinstance(event, RoundsDone) for row in event.rounds]


@pytest.mark.parametrize("method", ["sgd", "momentum"])
def test_a_run_in_double_precision_withstands_it(method: str) -> None:
    """Most rounds of two numbers are honest; a robust rule bears the others, also a NaN that stays
    in the worker's momentum.
    """
    rounds = rounds_of(
        task="quadratic", method=method, attack="bit-flip:rate=0.3", aggregator="cwmed"
    )
    clean = rounds_of(task="quadratic", method=method, attack="none", aggregator="cwmed")
    assert rounds != clean
    assert all(math.isfinite(row.gradient_norm) for row in rounds)


def test_legal_ranges() -> None:
    with pytest.raises(SpecError) as error:
        made("bit-flip:rate=0,bits=low", 3)
    assert [line.split("; ")[1] for line in error.value.problems] == [
        "rate must be a number > 0 and <= 1",
        "bits must be any or sign or exponent or mantissa",
    ]
