"""Intervals, paired tests and Holm's correction, against numbers worked by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.separation import separated
from dynabro_cli.answers.analysis.paired_tests import (
    bootstrap,
    differences,
    groups,
    holm,
    paired,
    paired_t,
    student,
)
from tests.tables import each_row

NAN = math.nan


def test_students_interval() -> None:
    """For 0.1, 0.2, 0.3: s = 0.1, t = 4.302653 with two degrees of freedom, so 0.2 +- 0.248414."""
    assert student([0.1, 0.2, 0.3]) == pytest.approx((-0.048414, 0.448414), abs=1e-6)
    assert all(math.isnan(end) for end in student([0.5]))


def test_the_bootstrap_is_the_same_every_time_and_within_the_values() -> None:
    values = [0.1, 0.2, 0.3, 0.9]
    low, high = bootstrap(values)
    assert bootstrap(values) == (low, high)
    assert 0.1 <= low < 0.375 < high <= 0.9
    assert bootstrap([0.25] * 3) == (0.25, 0.25)
    assert all(math.isnan(end) for end in bootstrap([0.5]))


def test_of_two_values_the_bootstrap_is_their_range() -> None:
    """The mean of two draws is an end with probability 1/4, more than the 2.5% beyond the
    interval.
    """
    assert bootstrap([0.1, 0.5]) == (0.1, 0.5)


def test_paired_differences() -> None:
    """t = 0.2/(0.1/sqrt 3) = 3.4641 with two degrees of freedom: p = 0.07418. All three signs are
    equal: p = 2/2^3.
    """
    found = paired([0.1, 0.2, 0.3])
    assert (found.n, found.mean) == (3, pytest.approx(0.2))
    assert found.p_t == pytest.approx(0.0741799, abs=1e-6)
    assert found.p_wilcoxon == pytest.approx(0.25)
    assert found.student == student([0.1, 0.2, 0.3])


def test_differences_without_spread() -> None:
    """No difference is p = 1; equal differences have Wilcoxon's p; one pair has no test."""
    assert paired([0.0, 0.0])[4:] == (1.0, 1.0)
    rounded = paired(
        [0.7 - 0.4, 0.8 - 0.5, 0.9 - 0.6]
    )  # equal except for the last bits: no warning of SciPy, and no p of 1e-32
    assert rounded.p_t == 0.25
    equal = paired([0.25, 0.25, 0.25])
    assert equal.p_t == 0.25
    assert equal.p_wilcoxon == pytest.approx(0.25)
    one = paired([0.25])
    assert one.mean == 0.25
    assert all(
        math.isnan(number) for number in (*one.student, *one.bootstrap, one.p_t, one.p_wilcoxon)
    )


def test_holm() -> None:
    """Sorted: 0.01 x 4, 0.02 x 3, 0.03 x 2 and 0.5, each at least the one before."""
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    with_nan = holm([NAN, 0.01, 0.04])
    assert math.isnan(with_nan[0])
    assert with_nan[1:] == pytest.approx([0.02, 0.04])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_is_between_p_and_bonferroni(values: list[float]) -> None:
    for value, adjusted in zip(values, holm(values), strict=True):
        assert value <= adjusted <= min(1.0, value * len(values)) or adjusted == max(holm(values))


@each_row("seed", range(4))
def test_two_rows_share_a_letter_if_no_test_separates_them(seed: int) -> None:
    draws = np.random.default_rng(seed)
    means = draws.permutation([0.0, 0.0, 0.2, 0.5, 0.7, 0.7, 0.9])
    rows = [dict(enumerate(mean + 0.2 * draws.standard_normal(6))) for mean in means]
    rows += [
        {},
        dict.fromkeys(range(6), 0.3),
        dict.fromkeys(range(6), 0.3),
        dict.fromkeys(range(6), 0.4),
    ]
    known = [n for n, row in enumerate(rows) if row]
    pairs = [(a, b) for a, b in itertools.combinations(known, 2)]
    ps = [paired_t([rows[a][key] - rows[b][key] for key in range(6)]) for a, b in pairs]
    apart = {pair for pair, p in zip(pairs, holm(ps), strict=True) if not p > 0.05}
    found = groups(rows)
    assert (found.letters[7], found.tied[7]) == ("", False)
    assert (8, 9) not in apart  # no difference
    assert ((8, 10) in apart) == (holm(ps)[pairs.index((8, 10))] <= 0.05)  # equal differences
    for pair in pairs:
        assert bool(set(found.letters[pair[0]]) & set(found.letters[pair[1]])) == (
            pair not in apart
        )
    best = max(known, key=lambda n: sum(rows[n].values()))
    assert "a" in found.letters[best]
    assert [n for n in known if found.tied[n]] == [
        n for n in known if n == best or (min(n, best), max(n, best)) not in apart
    ]
    sets = [
        {n for n in known if letter in found.letters[n]} for letter in set("".join(found.letters))
    ]
    assert not any(one < other for one in sets for other in sets)


def test_one_common_seed_separates_nothing() -> None:
    assert groups([{0: 0.9}, {0: 0.1}, {1: 0.5}]) == (["a", "a", "a"], [True, True, True])


@each_row("seeds", range(2, 10))
def test_equal_differences_separate_from_six_seeds_on(seeds: int) -> None:
    """Accuracies in steps of 1/360 often differ equally at two seeds, also of equal methods."""
    rows = [{seed: (100 + seed + step) / 360 for seed in range(seeds)} for step in (0, 1)]
    assert (groups(rows).letters == ["b", "a"]) == (seeds >= 6)


def test_equal_differences_are_corrected() -> None:
    """p = 2/2^6 of one pair, times 15 pairs."""
    rows = [{seed: (seed + step) / 360 for seed in range(6)} for step in range(6)]
    assert groups(rows).letters == ["a"] * 6


def test_two_infinite_losses_are_equal_and_one_is_not_averaged() -> None:
    assert differences({0: math.inf, 1: math.inf}, {0: math.inf, 1: 2.0}) == [0.0, math.inf]
    test = paired([math.inf] * 6)
    assert math.isnan(test.p_t)
    assert math.isnan(test.student.low)
    assert test.p_wilcoxon == 2 / 2**6
    assert groups([{0: math.inf, 1: math.inf}, {0: 1.0, 1: 1.0}]).letters == ["a", "a"]


@each_row(("seeds", "std"), [(2, 0.004), (5, 0.004), (7, 0.002), (8, 0.002)])
def test_equal_methods_are_separated_in_5_percent_at_most(seeds: int, std: float) -> None:
    """2,000 draws in steps of 1/360, at seeds of which a plain t-test separates up to 9%."""
    assert separated(seeds, std, 2000) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 2000)
