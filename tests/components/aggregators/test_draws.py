"""Random numbers of seed and call."""

from __future__ import annotations

import collections
import itertools

import pytest
import torch
from scipy.stats import chisquare

from dynabro_cli.components.aggregators._draws import BITS, Draws, scrambled
from tests.tables import each_row

CPU = torch.device("cpu")


def test_scrambled_is_the_published_function() -> None:
    # lowbias32 of Wellons' hash-prospector with 16 21f0aaad 15 735a2d97 15, in Python's own whole
    # numbers
    def published(x: int) -> int:
        x = (x ^ (x >> 16)) * 0x21F0AAAD & BITS
        x = (x ^ (x >> 15)) * 0x735A2D97 & BITS
        return x ^ (x >> 15)

    numbers = [0, 1, 2, 12345, 0x80000000, BITS]
    assert scrambled(torch.tensor(numbers)).tolist() == [published(number) for number in numbers]


def test_the_same_call_draws_the_same_and_others_draw_others() -> None:
    drawn = [
        tuple(Draws(seed).numbers(call, 50, CPU).tolist()) for seed in (0, 1) for call in range(100)
    ]
    assert len(set(drawn)) == 200
    assert tuple(Draws(0).numbers(torch.tensor(7), 50, CPU).tolist()) == drawn[7]
    for numbers in drawn:
        assert len(set(numbers)) == 50
        assert 0 <= min(numbers) <= max(numbers) <= BITS


@pytest.mark.thorough
def test_permutations_are_uniform() -> None:
    for seed in (0, 1):
        draws = Draws(seed)
        counts = collections.Counter(
            tuple(draws.permutation(call, 4, CPU).tolist()) for call in range(4800)
        )
        assert set(counts) == set(itertools.permutations(range(4)))
        assert chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.thorough
def test_places_of_calls_in_turn_are_independent() -> None:
    draws = Draws(5)
    firsts = [int(draws.permutation(call, 5, CPU)[0]) for call in range(5001)]
    pairs = collections.Counter(itertools.pairwise(firsts))
    assert len(pairs) == 25
    assert chisquare(list(pairs.values())).pvalue > 1e-3


@each_row(("count", "d"), [(1, 1), (3, 3), (5, 20), (7, 20)])
def test_coordinates_are_one_of_each_stretch(count: int, d: int) -> None:
    draws = Draws(0)
    chosen = torch.stack([draws.coordinates(call, count, d, CPU) for call in range(500)])
    for place in range(count):
        stretch = range(place * d // count, (place + 1) * d // count)
        assert set(chosen[:, place].tolist()) == set(stretch)


@pytest.mark.thorough
def test_coordinates_are_equally_likely() -> None:
    draws = Draws(0)
    counts = (
        torch.stack([draws.coordinates(call, 5, 20, CPU) for call in range(2000)])
        .flatten()
        .bincount(minlength=20)
    )
    assert chisquare(counts.tolist()).pvalue > 1e-3
