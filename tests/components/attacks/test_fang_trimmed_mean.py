"""Fang et al.'s attack on the trimmed mean and the median."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.api import make_attack
from dynabro_cli.components.attacks._noise import noise_key, uniform_noise
from dynabro_cli.core.errors import SpecError

DOUBLE = torch.float64


def drawn(m: int, d: int, tick: int = 0, seed: int = 0) -> Tensor:
    """r of the paper's authors, uniform on [1, 2]."""
    return 1 + uniform_noise(noise_key(seed), torch.tensor(tick), torch.zeros(m, d, dtype=DOUBLE))


def test_golden() -> None:
    # honest (1, -2, -1, -4), (3, 4, -3, -2), Byzantine (5, -8, 30, 0): the mean of all has the
    # signs +, -, +, -. Where it is +, beyond the least honest value: 1 to 1/r, -3 to -3 r; where it
    # is -, beyond the largest: 4 to 4 r, -2 to -2/r
    own = torch.tensor([[1.0, -2, -1, -4], [3, 4, -3, -2], [5, -8, 30, 0]], dtype=DOUBLE)
    byzantine, r = torch.tensor([False, False, True]), drawn(3, 4)[2]
    sent = make_attack("fang-trimmed-mean:direction=mean", workers=3)(own, byzantine)
    expected = torch.stack([1 / r[0], 4 * r[1], -3 * r[2], -2 / r[3]])
    torch.testing.assert_close(sent, torch.cat([own[:2], expected[None]]))
    # b = 4: r is uniform on [1, 4]
    sent = make_attack("fang-trimmed-mean:direction=mean,b=4", workers=3)(own, byzantine)
    torch.testing.assert_close(sent[2, 1], 4 * (1 + 3 * (r[1] - 1)))


def test_golden_aggregate() -> None:
    # the mean of 1, 1 and -8 is -2, but the aggregate is their median, +1: beyond the least honest
    # value, 1, to 1/r
    own, byzantine = (
        torch.tensor([[1.0], [1], [-8]], dtype=DOUBLE),
        torch.tensor([False, False, True]),
    )
    r = drawn(3, 1)[2, 0]
    seen = make_attack("fang-trimmed-mean", workers=3)(
        own, byzantine, lambda rows: rows.median(0).values
    )
    torch.testing.assert_close(seen[2, 0], 1 / r)
    unseen = make_attack("fang-trimmed-mean:direction=mean", workers=3)(own, byzantine)
    torch.testing.assert_close(unseen[2, 0], r)  # beyond the largest, 1


@pytest.mark.parametrize("count", [1, 5])
def test_one_to_all(count: int) -> None:
    """Always beyond the honest values, away from where the model would go, by a factor of at most
    2.
    """
    own = torch.randn(5, 40, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    byzantine, honest = torch.arange(5) < count, own[count % 5 :]
    sent = make_attack("fang-trimmed-mean:direction=mean", workers=5)(own, byzantine)
    assert torch.equal(sent[count:], own[count:])
    for row in sent[:count]:
        falls = own.mean(0) < 0
        extreme = torch.where(falls, honest.amax(0), honest.amin(0))
        assert bool(torch.where(falls, row >= extreme, row <= extreme).all())
        ratio = row / extreme
        assert bool(((ratio >= 0.5) & (ratio <= 2)).all())


def test_draws_are_of_the_seed_the_round_and_the_worker() -> None:
    own, byzantine = torch.ones(4, 3, dtype=DOUBLE), torch.tensor([True, True, False, False])
    attacks = [
        make_attack("fang-trimmed-mean:direction=mean", workers=4, seed=seed) for seed in (0, 0, 1)
    ]
    first, again, other = ([attack(own, byzantine)[:2] for _ in range(3)] for attack in attacks)
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert len({tuple(row.tolist()) for rows in (*first, *other) for row in rows}) == 12
    torch.testing.assert_close(first[2], 1 / drawn(4, 3, tick=2)[:2])


def test_legal_ranges() -> None:
    with pytest.raises(SpecError) as error:
        make_attack("fang-trimmed-mean:b=1,direction=median", workers=3)
    assert [line.split("; ")[1] for line in error.value.problems] == [
        "b must be a number > 1",
        "direction must be aggregate or mean",
    ]
