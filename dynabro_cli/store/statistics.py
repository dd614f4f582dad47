"""Statistics of a few runs: confidence intervals of a mean, paired tests, and a correction for many tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
BOOTSTRAP_SEED, BOOTSTRAP_RESAMPLES = 0, 10_000
"""Seed and number of the resamples of every bootstrap interval, so that the same values have the same interval."""

ROUNDING = 1e-10
"""Differences whose range is at most this share of the largest one are equal."""


class Interval(NamedTuple):
    """The ends of a 95% confidence interval; NaN if the values do not determine one."""

    low: float
    high: float


class Paired(NamedTuple):
    """The differences of pairs: their number, mean, intervals of the mean, and p-values of a mean or median of 0.

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


def student(values: Sequence[float]) -> Interval:
    """Return Student's interval mean +- t s/sqrt(n); it supposes that the values are normal."""
    from scipy.stats import t

    count = len(values)
    if count < 2:
        return Interval(math.nan, math.nan)
    mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * std / math.sqrt(count)
    return Interval(mean - half, mean + half)


def bootstrap(values: Sequence[float]) -> Interval:
    """Return the percentile bootstrap interval of the mean; it is too narrow for fewer than ten values or so."""
    count = len(values)
    if count < 2:
        return Interval(math.nan, math.nan)
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    draws = generator.integers(count, size=(BOOTSTRAP_RESAMPLES, count))
    means = np.asarray(values, dtype=float)[draws].mean(1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(low), float(high))


def paired_t(differences: Sequence[float]) -> float:
    """Return the two-sided p of the paired t-test: 1 if all differences are 0, NaN if they have no spread to judge by."""
    from scipy.stats import ttest_1samp

    if len(differences) > 1 and not any(differences):
        return 1.0
    judged = len(differences) > 1 and np.ptp(differences) > ROUNDING * max(map(abs, differences))
    return float(ttest_1samp(differences, 0).pvalue) if judged else math.nan


def paired(differences: Sequence[float]) -> Paired:
    """Test if the differences of pairs are 0 on average.

    Differences that are all 0 have p = 1. If they are equal, but for rounding, and not 0, there is no spread to judge by, and
    p_t is NaN.
    Wilcoxon's test ignores pairs without a difference; its smallest p for n pairs is 2/2^n.
    """
    from scipy.stats import wilcoxon

    count = len(differences)
    p_wilcoxon = math.nan
    if count > 1:
        p_wilcoxon = float(wilcoxon(differences).pvalue) if any(differences) else 1.0
    mean, p_t = float(np.mean(differences)), paired_t(differences)
    return Paired(count, mean, student(differences), bootstrap(differences), p_t, p_wilcoxon)


def holm(values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, which bound the chance of any false finding among all tests; a NaN stays and counts not.

    With p_(1) <= ... <= p_(k): max over j <= i of min(1, (k - j + 1) p_(j)).

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    places = sorted((place for place, value in enumerate(values) if not math.isnan(value)), key=lambda place: values[place])
    adjusted, largest = [math.nan] * len(values), 0.0
    for rank, place in enumerate(places):
        largest = max(largest, min(1.0, (len(places) - rank) * values[place]))
        adjusted[place] = largest
    return adjusted
