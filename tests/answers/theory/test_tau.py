"""The ratios that ``filter=adaptive`` compares with tau."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dynabro_cli import RunSpec, simulate
from dynabro_cli.answers.theory.tau import METHOD, honest_ratios, summary
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.build import data_directory

SPEC = RunSpec(method=METHOD, attack="none", model="logistic", workers=5, byzantine=1, budget=60)


def test_a_filter_with_a_limit_between_two_ratios_tells_them_apart() -> None:
    """The same run with a tau below some ratios rejects the first correction with a larger one, and
    none before it.
    """
    ratios = honest_ratios(SPEC, data_directory(None))
    tau = float(np.median(ratios))
    first = next(place for place, ratio in enumerate(ratios) if ratio > tau)
    rows = [
        row
        for event in simulate(
            RunSpec(**{**vars(SPEC), "method": f"dynabro:filter=adaptive,tau={tau:.9f}"}),
            compile="off",
        )
        for row in getattr(event, "rounds", ())
    ]
    accepted = [row.accepted for row in rows if row.accepted is not None]
    assert accepted[: first + 1] == [True] * first + [False]


def test_quantiles() -> None:
    found = summary("cwtm", 1, [1.0] * 998 + [3.0, math.nan])
    assert (found.corrections, found.median, found.q99, found.largest, found.above) == (
        1000,
        1.0,
        1.0,
        math.inf,
        0.002,
    )


def test_what_has_no_ratio(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no filter by the spread"):
        honest_ratios(RunSpec(**{**vars(SPEC), "method": "dynabro"}), tmp_path)
