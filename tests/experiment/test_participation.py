"""Workers that answer: their number, with equal chances, independent of all other draws."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2

from dynabro_cli.experiment.complete import answering, answering_count
from tests.tables import each_row


@each_row(
    ("share", "workers", "expected"),
    [
        (1.0, 17, 17),
        (0.5, 17, 9),
        (0.28, 25, 7),
        (0.7, 10, 7),
        (0.3, 10, 3),
        (0.01, 17, 1),
        (0.99, 17, 17),
        (1e-12, 5, 1),
    ],
)
def test_how_many(share: float, workers: int, expected: int) -> None:
    """ceil(share m), where 0.28 x 25 is 7.000000000000001 to a computer, and 7 all the same."""
    assert answering_count(share, workers) == expected
    assert len(answering(0, share, workers, 3)) == expected


def test_a_function_of_seed_and_round() -> None:
    first = [answering(4, 0.5, 17, round_).tolist() for round_ in range(20)]
    assert [answering(4, 0.5, 17, round_).tolist() for round_ in reversed(range(20))] == first[::-1]
    assert all(numbers == sorted(set(numbers)) for numbers in first)
    assert len({tuple(numbers) for numbers in first}) > 15
    assert answering(5, 0.5, 17, 0).tolist() != first[0]


def test_uniform_over_workers() -> None:
    """The same test as for uniform Byzantine sets (components/switching/test_periodic.py): wrong
    with probability 1e-6.
    """
    draws, m, n = 4000, 9, 4
    counts = np.zeros(m)
    for round_ in range(draws):
        counts[answering(0, 0.4, m, round_)] += 1
    q = n / m
    assert ((counts - draws * q) ** 2).sum() / (draws * q * (1 - q) * m / (m - 1)) < chi2.isf(
        1e-6, m - 1
    )
