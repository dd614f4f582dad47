"""Exponents of power laws, fitted to measured points; numbers only, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import linregress
from scipy.stats import t as student

CONFIDENCE = 0.95


class PowerLaw(NamedTuple):
    """y = exp(intercept) x^slope, with the confidence interval of the slope; no interval for only
    two points.
    """

    slope: float
    low: float
    high: float
    intercept: float
    points: int


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw | None:
    """Fit a line to log y against log x by least squares; None for fewer than two different x.

    Points that are not above 0 have no logarithm and are skipped. The interval is Student's, from
    the points' distances from the line, with two degrees of freedom fewer than points. It includes
    deviations from the law and noise.
    """
    values = np.array([x, y], dtype=float)
    values = np.log(values[:, (np.isfinite(values) & (values > 0)).all(0)])
    count = values.shape[1]
    if len(np.unique(values[0])) < 2:
        return None
    line = linregress(*values)
    half = student.ppf((1 + CONFIDENCE) / 2, count - 2) * line.stderr if count > 2 else np.nan
    slope, intercept = float(line.slope), float(line.intercept)
    return PowerLaw(slope, float(slope - half), float(slope + half), intercept, count)
