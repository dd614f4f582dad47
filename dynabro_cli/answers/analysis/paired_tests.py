"""Intervals of means, paired tests with Holm's correction, and the groups that they separate."""

from __future__ import annotations

import itertools
import math
import statistics
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

LEVEL = 0.05
"""A difference counts if Holm's adjusted p of the t-test is at most this."""
LETTERS = string.ascii_letters
CONFIDENCE = 0.95
BOOTSTRAP_SEED, BOOTSTRAP_RESAMPLES = 0, 10_000
"""Seed and number of the resamples of every bootstrap interval, so that the same values have the
same interval.
"""

ROUNDING = 1e-10
"""Differences whose range is at most this share of the largest one are equal."""


class Interval(NamedTuple):
    """The ends of a 95% confidence interval; NaN if the values do not determine one."""

    low: float
    high: float


class Paired(NamedTuple):
    """The differences of pairs: their number, mean, intervals of the mean, and p-values of a mean
    or median of 0.

    Attributes:
        n: Number of pairs.
        mean: Mean difference.
        student: Student's interval; NaN for one pair.
        bootstrap: Percentile bootstrap interval; NaN for one pair.
        p_t: Two-sided p of the paired t-test; NaN if it is not defined.
        p_wilcoxon: Two-sided p of Wilcoxon's signed-rank test; NaN for one pair.
    """

    n: int
    mean: float
    student: Interval
    bootstrap: Interval
    p_t: float
    p_wilcoxon: float


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean, and the standard deviation with ddof 1; None if it is not defined."""
    spread = len(values) > 1 and all(map(math.isfinite, values))
    return statistics.fmean(values), statistics.stdev(values) if spread else None


def half_width(std: Any, count: Any) -> Any:
    """Return t s/sqrt(n), half of Student's interval of a mean, for numbers or columns of them; NaN
    for one value.
    """
    from scipy.special import stdtrit  # t.ppf takes a hundred times as long

    return stdtrit(count - 1, (1 + CONFIDENCE) / 2) * std / np.sqrt(count)


def student(values: Sequence[float]) -> Interval:
    """Return Student's interval mean +- t s/sqrt(n); it supposes that the values are normal."""
    if len(values) < 2 or not np.isfinite(values).all():
        return Interval(math.nan, math.nan)
    mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
    half = float(half_width(std, len(values)))
    return Interval(mean - half, mean + half)


def bootstrap(values: Sequence[float]) -> Interval:
    """Return the percentile bootstrap interval of the mean; it is too narrow for fewer than ten
    values or so.
    """
    count = len(values)
    if count < 2 or not np.isfinite(values).all():
        return Interval(math.nan, math.nan)
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    draws = generator.integers(count, size=(BOOTSTRAP_RESAMPLES, count))
    means = np.asarray(values, dtype=float)[draws].mean(1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(low), float(high))


def paired_t(differences: Sequence[float]) -> float:
    """Return the two-sided p of the paired t-test: 1 if all differences are 0, NaN for one pair or
    an infinite difference.

    Accuracies have steps. If k of n pairs differ and the others do not, or if all differ equally, p
    is at least 2/2^k, the least p of Wilcoxon's signed-rank test for k pairs. Else equal methods
    would be separated too often (``python -m benchmarks separation``).
    """
    from scipy.special import stdtr  # ttest_1samp takes a hundred times as long

    count, changed = len(differences), sum(map(bool, differences))
    if count > 1 and not changed:
        return 1.0
    if count < 2 or not np.isfinite(differences).all():
        return math.nan
    least = 2.0 ** (1 - changed)
    if np.ptp(differences) <= ROUNDING * max(map(abs, differences)):
        return least
    t = float(np.mean(differences)) / (float(np.std(differences, ddof=1)) / math.sqrt(count))
    p = 2 * float(stdtr(count - 1, -abs(t)))
    return max(p, least) if changed < count else p


def paired(differences: Sequence[float]) -> Paired:
    """Test if the differences of pairs are 0 on average.

    Wilcoxon's test ignores pairs without a difference; its smallest p for n pairs is 2/2^n.
    """
    from scipy.stats import wilcoxon

    count = len(differences)
    p_wilcoxon = math.nan
    if count > 1:
        p_wilcoxon = float(wilcoxon(differences).pvalue) if any(differences) else 1.0
    mean, p_t = float(np.mean(differences)), paired_t(differences)
    return Paired(count, mean, student(differences), bootstrap(differences), p_t, p_wilcoxon)


def differences(a: Mapping[Any, float], b: Mapping[Any, float]) -> list[float]:
    """Return a - b for each seed that both have; NaNs are left out, and two infinite losses are
    equal.
    """
    shared = [a[seed] - b[seed] if a[seed] != b[seed] else 0.0 for seed in a if seed in b]
    return [difference for difference in shared if not math.isnan(difference)]


def holm(values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, which bound the chance of any false finding. NaNs are kept
    but not counted.

    With p_(1) <= ... <= p_(k): max over j <= i of min(1, (k - j + 1) p_(j)).

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    places = sorted(
        (place for place, value in enumerate(values) if not math.isnan(value)),
        key=lambda place: values[place],
    )
    adjusted, largest = [math.nan] * len(values), 0.0
    for rank, place in enumerate(places):
        largest = max(largest, min(1.0, (len(places) - rank) * values[place]))
        adjusted[place] = largest
    return adjusted


class Groups(NamedTuple):
    """Rows that paired tests separate.

    Attributes:
        letters: The letters of each row (a compact letter display); rows with a common letter are
            not separated. Empty without a value.
        tied: True for each row that is not separated from the row with the highest mean, and for
            that row.
    """

    letters: list[str]
    tied: list[bool]


def groups(rows: Sequence[Mapping[Any, float]]) -> Groups:
    """Compare all pairs of rows of values by seed, with paired t-tests over common seeds and Holm's
    correction.

    Two rows are separated if the adjusted p is at most ``LEVEL``. A letter is a largest set of rows
    of which no two are separated; ``a`` has the row with the highest mean. Letters come from the
    insert-and-absorb algorithm.

    Reference: Piepho, Journal of Computational and Graphical Statistics 13 (2004).
    """
    ordered = sorted(
        (n for n, row in enumerate(rows) if len(row)),
        key=lambda n: -float(np.mean([*rows[n].values()])),
    )
    pairs = list(itertools.combinations(ordered, 2))
    by_pair = [differences(rows[a], rows[b]) for a, b in pairs]
    adjusted = holm([paired_t(values) for values in by_pair])
    apart = {pair for pair, p in zip(pairs, adjusted, strict=True) if p <= LEVEL}
    cliques = [frozenset(ordered)] if ordered else []
    for pair in pairs:
        if pair in apart:
            parts = [clique - {n} for clique in cliques if clique >= set(pair) for n in pair]
            cliques = list(
                dict.fromkeys([*(clique for clique in cliques if not clique >= set(pair)), *parts])
            )
            cliques = [clique for clique in cliques if not any(clique < other for other in cliques)]
    cliques.sort(key=lambda clique: sorted(map(ordered.index, clique)))
    letters = [
        "".join(
            LETTERS[place % len(LETTERS)] for place, clique in enumerate(cliques) if n in clique
        )
        for n in range(len(rows))
    ]
    return Groups(
        letters, [n in ordered and (ordered[0], n) not in apart for n in range(len(rows))]
    )
