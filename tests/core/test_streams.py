"""Random streams: every draw is a pure function of (seed, name, counter)."""

from __future__ import annotations

import doctest
import itertools
import typing

import numpy as np
import pytest
from scipy.stats import kstest

from dynabro_cli.core import streams
from dynabro_cli.core.streams import Name, Streams

NAMES: tuple[Name, ...] = typing.get_args(Name)


def test_golden() -> None:
    """The numbers behind stored runs: if they change, so does every run, and ``KEY_VERSION`` has to
    be increased.
    """
    generator = Streams(0).generator("identities", 0)
    assert generator.random() == 0.11984045255772335
    assert generator.choice(17, 8, replace=False).tolist() == [12, 0, 1, 4, 8, 6, 15, 5]
    assert Streams(1).integer("data", 2, 3) == 4953300730571110263


def test_draws_do_not_depend_on_what_was_drawn_before() -> None:
    places = [
        (name, first, second) for name in NAMES for first in (0, 1, 2**40) for second in (0, 5)
    ]
    fresh = {place: Streams(4).generator(*place).random(3).tolist() for place in places}
    shared = Streams(4)
    for place in reversed(places):
        shared.generator(*place).random(100)
        assert shared.generator(*place).random(3).tolist() == fresh[place]


def test_a_moved_generator_draws_as_a_fresh_one() -> None:
    shared = Streams(4)
    for name, first, second in itertools.product(NAMES, (3, 0, 2**40), (5, 0)):
        fresh = Streams(4).generator(name, first, second)
        moved = shared.moved(name, first, second)
        assert (
            moved.integers(0, 7, size=3, dtype="int8").tolist()
            == fresh.integers(0, 7, size=3, dtype="int8").tolist()
        )
        # the next call finds half-used words
        assert moved.random(3).tolist() == fresh.random(3).tolist()


def test_seed_name_and_both_counters_matter() -> None:
    places = itertools.product((0, 1, 2), NAMES, (0, 1, 2), (0, 1, 2))
    values = [
        Streams(seed).generator(name, first, second).random()
        for seed, name, first, second in places
    ]
    assert len(set(values)) == len(values)


def test_neighbouring_counters_do_not_overlap() -> None:
    draws = [
        Streams(0).generator("data", *place).random(5000) for place in ((0, 0), (0, 1), (1, 0))
    ]
    assert len(np.unique(np.concatenate(draws))) == 15_000


def test_first_draws_of_successive_counters_are_uniform_and_uncorrelated() -> None:
    """A Kolmogorov-Smirnov test, wrong with probability 1e-6; correlations, 4.9 deviations from 0,
    with 1e-6 each.
    """
    n = 4000
    data, noise = (
        np.array([Streams(0).generator(name, t).random() for t in range(n)])
        for name in ("data", "noise")
    )
    assert kstest(data, "uniform").pvalue > 1e-6
    for first, second in ((data, noise), (data[1:], data[:-1])):
        assert abs(np.corrcoef(first, second)[0, 1]) < 4.9 / n**0.5


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_integers_are_seeds(seed: int) -> None:
    number = Streams(seed).integer("init", 0)
    assert isinstance(number, int)
    assert 0 <= number < 2**63


def test_example_in_docstring() -> None:
    results = doctest.testmod(streams)
    assert results.attempted > 0
    assert results.failed == 0
