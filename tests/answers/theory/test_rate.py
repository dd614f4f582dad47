"""Exponents read from made-up results of the sweep; and the sweep, which is what the theorems are
about.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dynabro_cli.answers.theory import bounds, rate
from dynabro_cli.components.methods._levels import expected_cost, planned, universal_coefficient
from dynabro_cli.runs.store.open.engine import open_read_only
from tests.answers.figures.grids import planned as rows_of
from tests.answers.theory.made_rates import ROUNDS, dynamic_rate, fill, nominal, share, static_rate
from tests.tables import each_row

ROWS = rows_of("verify-rate", "seeds=0")
ROWS_WITH_NOISE = [row for row in ROWS if not rate.is_control(row)]
SETTINGS = [(part, setting) for part, about in rate.PARTS.items() for setting in about.predicted]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rates") / "rates.db"
    fill(path, spread=0.1)
    return path


def points(database: Path, seeds: str = "seeds=0..1") -> pd.DataFrame:
    keys = [row["run_key"] for row in rows_of("verify-rate", seeds)]
    return rate.cells(rate.measure(*rate.read(open_read_only(str(database)), keys)))


# --- reading


@pytest.mark.thorough
def test_exponents_of_made_up_runs(database: Path) -> None:
    """Seeds are 10 % above and below, and means exact; see ``made_rates.value``."""
    found = {(one.part, one.setting): one for one in rate.slopes(points(database))}
    assert list(found) == SETTINGS
    exponents = {"rounds": -0.5, "optimum": -0.5, "delta": 0.8, "switches": 1.2}
    sizes = {"rounds": 5, "optimum": 5, "delta": 8, "switches": 6}
    for (part, _), one in found.items():
        assert one.slope == pytest.approx(exponents[part], abs=1e-3)
        assert one.low == pytest.approx(one.high, abs=1e-2)
        assert (one.points, one.left_out, one.seeds, one.controlled) == (sizes[part], 0, 2, True)
        assert (
            math.isnan(one.control[0])
            if part != "rounds"
            else one.control == (pytest.approx(-0.7, abs=1e-3),) * 3
        )


def test_points_of_made_up_runs(database: Path) -> None:
    found = points(database)
    static = rate.series(found, "rounds", "static")
    assert list(static["x"]) == [128, 256, 512, 1024, 2048]
    assert static["mean"].to_numpy() == pytest.approx([7 * T**-0.5 for T in static["x"]], rel=1e-8)
    assert static["std"].to_numpy() == pytest.approx(static["mean"] * 0.1 * math.sqrt(2), rel=1e-8)
    delta = rate.series(found, "delta", "mfm")
    assert list(delta["x"]) == pytest.approx([f / 25 for f in (1, 2, 3, 4, 6, 8, 10, 12)])
    switches = rate.series(found, "switches", "eta = 1/L")
    assert list(switches["x"]) == [k / ROUNDS for k in (2, 4, 8, 16, 32, 64)]
    assert switches["mean"].to_numpy() == pytest.approx(
        [3 * x**1.2 for x in switches["x"]], rel=1e-8
    )


@pytest.mark.thorough
def test_the_excess_is_over_the_run_of_the_same_seed(tmp_path: Path) -> None:
    """Without a static run of its seed a run has no excess, and makes its point none."""
    path = tmp_path / "one.db"
    fill(path, ("seeds=0..1",))
    keys = [row["run_key"] for row in rows_of("verify-rate") if row["seed"] < 2]
    runs, evaluations = rate.read(open_read_only(str(path)), keys)
    still = (runs["clock"] == "computation") & (runs["switching"] == "static") & (runs["seed"] == 1)
    found = rate.cells(rate.measure(runs[~still], evaluations))
    assert rate.series(found, "switches", "eta = 1/L")["mean"].isna().all()
    assert rate.series(found, "delta", "mfm")["mean"].notna().all()


@pytest.mark.thorough
def test_a_point_that_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "diverged.db"
    fill(path, ("seeds=0",), known=False)
    found = rate.slopes(points(path, "seeds=0"))
    assert [(one.part, one.setting) for one in found] == SETTINGS
    assert all(one.points == 0 and math.isnan(one.slope) for one in found)


def test_nothing_stored(tmp_path: Path, database: Path) -> None:
    found = rate.cells(rate.measure(*rate.read(open_read_only(str(database)), ["ab" * 32])))
    assert found.empty
    assert rate.slopes(found) == []


def test_theory_is_that_of_the_bounds(database: Path) -> None:
    """At T = 128, m = 9, f = 2, L = 3, f(x_1) - f* = 9: kappa = 7.84; log2 T = 7; C^2 = 8 log(16 x
    81 x 128) = 96.1534.

    Static: gamma = 7.9511, sigma^2 = 0.08. Option 1: gamma = 15.7911, (C V)^2 = 96.1534 x 0.0008.
    Option 2: gamma~ = 1.6914, C V = 9.8058 x 5.6569 = 55.4699, |f| <= 3/2 x 4.25^2 = 27.09375 on K,
    zeta = 2 x 27.09375 + 3 = 57.1875.
    """
    found = points(database)
    first = {
        setting: rate.series(found, "rounds", setting).iloc[0]
        for setting in rate.PARTS["rounds"].predicted
    }
    static = 16 * math.sqrt(27 * 0.08 * 7.9511 * 7 / 128) + 2 * (27 + 2 * 0.08 * 7.9511) / 128
    dynamic = (
        12 * math.sqrt(96.1534 * 0.0008 * 27 * 15.7911 * 7 / 128)
        + (54 + 9 * 96.1534 * 0.0008 * 15.7911) / 128
    )
    adaptive = bounds.adaptive_bound(128, 1.6914, 55.4699, 57.1875, 9)
    for setting, bound in zip(first, (static, dynamic, adaptive), strict=True):
        assert first[setting]["bound"] == pytest.approx(bound, rel=1e-4)
        assert first[setting]["theory"] == first[setting]["bound"]
    fits = {(one.part, one.setting): one for one in rate.slopes(found)}
    own = rate.series(found, "rounds", "static")
    assert fits["rounds", "static"].share == pytest.approx((own["mean"] / own["bound"]).max())
    assert fits["rounds", "static"].share < 0.1
    assert -0.5 < fits["rounds", "static"].of_bound < -0.4
    mfm = rate.series(found, "delta", "mfm")
    assert list(mfm["theory"]) == pytest.approx(
        [math.sqrt(32 * x**2 + 1 / 25) - 0.2 for x in mfm["x"]]
    )
    cwmed = rate.series(found, "delta", "cwmed")
    assert cwmed["theory"].iloc[-1] == pytest.approx(
        math.sqrt(2 * 4 * 13**2 + 1 / 25) - math.sqrt(8.04)
    )
    logs = np.log([[x, math.sqrt(32 * x**2 + 1 / 25) - 0.2] for x in mfm["x"]])
    assert fits["delta", "mfm"].of_bound == pytest.approx(np.polyfit(*logs.T, 1)[0])
    assert fits["switches", "eta = 1/L"].of_bound == pytest.approx(1)
    assert math.isnan(fits["delta", "cwmed"].share)


def test_the_floor_of_delta_is_subtracted_seed_by_seed(database: Path) -> None:
    """2 + 5 delta^0.8 with seeds 10% apart: the excess is 5 delta^0.8, and ``whole`` still has the
    floor.
    """
    found = points(database)
    for setting in rate.PARTS["delta"].predicted:
        own = rate.series(found, "delta", setting)
        assert own["mean"].to_numpy() == pytest.approx([5 * x**0.8 for x in own["x"]], rel=1e-8)
        assert own["std"].to_numpy() == pytest.approx(
            [0.5 * math.sqrt(2) * x**0.8 for x in own["x"]], rel=1e-8
        )
        assert own["whole"].to_numpy() == pytest.approx(
            [2 + 5 * x**0.8 for x in own["x"]], rel=1e-8
        )


@each_row(
    ("changed", "verdict"),
    [
        ({}, rate.CONSISTENT),
        ({"of_bound": 1.5}, rate.FLATTER),
        ({"of_bound": 0.9}, rate.STEEPER),
        ({"slope": -0.4, "low": -0.5, "high": -0.3, "of_bound": -0.6}, rate.FLATTER),
        ({"slope": -0.4, "low": -0.5, "high": -0.3, "of_bound": -0.2}, rate.STEEPER),
        ({"low": math.nan}, ""),
        ({"control": (1.1, 1.05, 1.15)}, rate.NOTHING),
        ({"control": (1.3, 1.2, 1.4)}, rate.CONSISTENT),
        ({"controlled": False}, rate.NOTHING),
        ({"left_out": 1}, rate.NOTHING),
        ({"low": -0.1}, rate.NOTHING),
        ({"unclear": 4}, rate.CONSISTENT),
        ({"unclear": 5}, rate.NOTHING),
        ({"unclear": 5, "of_bound": 1.5}, rate.NOTHING),
    ],
)
def test_verdicts(changed: dict[str, Any], verdict: str) -> None:
    """By the theorem's own exponent over the points, not by the limit that the text names, and
    beside the control.
    """
    none = (math.nan,) * 3
    slope = rate.Slope(
        "delta",
        "mfm",
        "delta",
        "excess",
        8,
        0,
        0,
        5,
        1.2,
        1.0,
        1.4,
        1.0,
        1.1,
        math.nan,
        none,
        controlled=True,
    )
    assert slope._replace(**changed).verdict == verdict


@pytest.mark.thorough
def test_unclear_points_and_a_control_that_has_not_been_run(tmp_path: Path) -> None:
    """With two seeds 10% apart, Student's interval is 1.27 times the mean on each side: every point
    is unclear.
    """
    path = tmp_path / "one.db"
    fill(path, spread=0.1)
    keys = [
        row["run_key"] for row in rows_of("verify-rate", "seeds=0..1") if not rate.is_control(row)
    ]
    found = rate.slopes(rate.cells(rate.measure(*rate.read(open_read_only(str(path)), keys))))
    assert all(one.unclear == one.points for one in found)
    assert {one.part for one in found if not one.controlled} == {"rounds"}


# --- the sweep


def test_every_run_belongs_to_a_setting() -> None:
    counts = pd.Series([rate.part_of(row) for row in ROWS]).value_counts().to_dict()
    assert counts == {
        place: {"rounds": 10, "optimum": 5, "delta": 9, "switches": 7}[place[0]]
        for place in SETTINGS
    }


def test_a_control_has_the_rounds_and_learning_rates_of_its_line() -> None:
    """It differs in noise and Byzantine workers only; without noise, every point of ``optimum``
    keeps the gradient 0.
    """
    lines: dict[bool, list[Any]] = {True: [], False: []}
    for row in ROWS:
        if rate.part_of(row)[0] == "rounds":
            spec = {
                **row["spec"],
                "task": {**row["spec"]["task"], "sigma": 0},
                "attack": None,
                "byzantine": 0,
            }
            lines[rate.is_control(row)].append(spec)
    assert lines[True] == lines[False]
    assert all(
        row["spec"]["task"]["start"] == (0, 0) for row in ROWS if rate.part_of(row)[0] == "optimum"
    )


def test_budgets_are_those_of_powers_of_two() -> None:
    for row in ROWS:
        if rate.part_of(row)[0] != "switches":
            T, jmax = planned(row["budget"], None)
            assert (T, 2**jmax) == (nominal(row["budget"]),) * 2
            assert row["budget"] == math.ceil(T * expected_cost(jmax) + 0.5)


def _rate(row: dict[str, Any]) -> float:
    """The theorem's learning rate of a run on the quadratic with L = 3 and f(x_1) - f* = 9."""
    m, f, T = row["workers"], row["byzantine"], nominal(row["budget"])
    V = row["spec"]["task"]["sigma"] * math.sqrt(2)
    if rate.part_of(row)[1] == "static":
        return static_rate(T, bounds.kappa_cwmed(m, f) + 1 / m, V, 3, 9)
    return dynamic_rate(
        T, 2 * bounds.kappa_cwmed(m, f) + 1 / m, universal_coefficient(m, T) * V, 3, 9
    )


def test_learning_rates_are_the_theorems() -> None:
    for row in ROWS_WITH_NOISE:
        part, setting = rate.part_of(row)
        if setting in ("static", "option 1"):
            assert row["learning_rate"] == pytest.approx(_rate(row), rel=1e-3)
        elif part == "switches":
            assert row["learning_rate"] == pytest.approx(
                1 / 3 if setting == "eta = 1/L" else 1 / 30, rel=1e-3
            )
        else:
            assert (row["lr_rule"], row["learning_rate"]) == ("adagrad-norm", 1.0)


def test_noise_bounds_are_those_of_the_noise() -> None:
    for row in ROWS_WITH_NOISE:
        task, method = row["spec"]["task"], row["spec"]["method"]
        assert task["noise"] == "bounded"
        if method["filter"] != "none":
            V = task["sigma"] * math.sqrt(2)
            assert V <= method["noise_bound"] < 1.001 * V


def test_no_round_of_the_switches_has_two() -> None:
    for row in ROWS:
        if row["clock"] == "computation":
            assert row["spec"]["method"]["jmax"] == 6
            assert row["switching"] == "static" or row["spec"]["switching"]["K"] >= 2**6
    assert {share(row) for row in ROWS if row["clock"] == "computation"} == {0, 2, 4, 8, 16, 32, 64}
