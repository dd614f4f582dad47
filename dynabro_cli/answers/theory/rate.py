"""Dependence of the mean squared gradient on T, delta and dynamic rounds, from the runs of
``verify-rate``.

Numbers only, no torch; figures are drawn from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from sqlalchemy import Engine

from dynabro_cli.answers.analysis.cells import seed_means
from dynabro_cli.answers.analysis.diverged import DIVERGED
from dynabro_cli.answers.analysis.paired_tests import half_width
from dynabro_cli.answers.analysis.results import with_specs
from dynabro_cli.answers.theory.bounds import (
    KAPPAS,
    adaptive_bound,
    dynamic_bound,
    gamma_mfm,
    static_bound,
)
from dynabro_cli.answers.theory.slopes import PowerLaw, power_law
from dynabro_cli.components.methods._levels import planned, universal_coefficient
from dynabro_cli.runs.store.read.queries import query
from dynabro_cli.runs.store.tables import HAS_RESULT

SWEEP = "verify-rate"
MOST_KEYS = 500
"""Largest number of runs in one SQL statement."""


class Part(NamedTuple):
    """One of the experiments: the varied quantity, the measured quantity, and theory's exponent for
    each setting.
    """

    against: str
    quantity: str
    predicted: Mapping[str, float]


GRADIENT = "mean |grad f|^2"
IN_T = {"static": -0.5, "option 1": -0.5, "option 2, adaptive": -0.5}
PARTS = {
    "rounds": Part("T", GRADIENT, IN_T),
    "optimum": Part("T", f"{GRADIENT}, from the optimum", IN_T),
    "delta": Part(
        "delta",
        f"{GRADIENT}, excess over delta = 0",
        {"mfm": 1.0, "cwmed": math.nan, "nnm+cwmed": 0.5},
    ),
    "switches": Part(
        "|tau_d|/T",
        f"{GRADIENT}, excess over |tau_d| = 0",
        {"eta = 1/L": 1.0, "eta = 1/(10 L)": 1.0},
    ),
}
"""Experiments by their names in ``dynabro verify rate``, with the exponents that the paper's text
names.

The exponents are limits for large T; for delta they hold with MFM (gamma in O(delta^2)) and with a
kappa in O(delta). CWMed has no kappa in O(delta), because its kappa tends to 4, so the paper gives
no exponent for it.
"""
CONSISTENT, NOTHING = "consistent, and the control is not", "says nothing"
STEEPER, FLATTER = "steeper than theory", "flatter than theory"
GAP = 9.0
"""f(x_1) - f* for which the sweep's learning rates are made; the theorems also hold with a smaller
f(x_1).
"""


class Slope(NamedTuple):
    """A fitted exponent, compared with theory's.

    Attributes:
        part: The experiment.
        setting: One of its series.
        against: The varied quantity.
        quantity: The measured quantity.
        points: Number of points in the fit.
        left_out: Number of points that are left out of the fit because they are not above 0.
        unclear: Number of points that are not above 0 by Student's 95% interval over the seeds.
        seeds: The smallest number of runs per point.
        slope: The exponent.
        low: Lower end of its 95% confidence interval; NaN without an interval.
        high: Upper end of the interval; NaN without an interval.
        predicted: The exponent that the paper's text names; NaN if it names no exponent.
        of_bound: The exponent of the theorem's bound over these points, with all its terms and
            logarithms, and with the same floor as the measured quantity.
        share: The largest share of the theorem's bound that a point reaches; NaN without a bound.
        control: The exponent of the null control, and the ends of its interval, in the order of
            ``slope``; NaN if the control is 0 at all points, or has no runs.
        controlled: True if the control is known at all points.
    """

    part: str
    setting: str
    against: str
    quantity: str
    points: int
    left_out: int
    unclear: int
    seeds: int
    slope: float
    low: float
    high: float
    predicted: float
    of_bound: float
    share: float
    control: tuple[float, float, float]
    controlled: bool

    @property
    def verdict(self) -> str:
        """Comparison of the interval with the theorem's own exponent; empty without an interval.

        A line says nothing if points are left out, because the rest is then chosen by its noise; if
        most points are unclear; if its interval holds 0; or if it is consistent with the bound and
        the control is, too, or is not known.
        """
        if math.isnan(self.low) or math.isnan(self.of_bound):
            return ""
        if self.left_out or 2 * self.unclear > self.points or self.low <= 0 <= self.high:
            return NOTHING
        if not self.low <= self.of_bound <= self.high:
            return STEEPER if abs(self.slope) > abs(self.of_bound) else FLATTER
        _, low, high = self.control
        return NOTHING if not self.controlled or low <= self.of_bound <= high else CONSISTENT


def is_control(run: Mapping[str, Any]) -> bool:
    """Return True if a run of the sweep is a null control: no worker is Byzantine, and gradients
    have no noise.
    """
    return not run["byzantine"] and not run["spec"]["task"]["sigma"]


def part_of(run: Mapping[str, Any]) -> tuple[str, str]:
    """Return the part and the setting of a run of the sweep from its columns ``clock``, ``spec``,
    ...
    """
    spec = run["spec"]
    rule = "+".join(
        [*(stage["name"] for stage in spec["pre_aggregators"]), spec["aggregator"]["name"]]
    )
    if run["clock"] == "computation":
        return (
            "switches",
            (
                "eta = "
                f"1/{'L' if run['learning_rate'] * spec['task']['condition'] > 0.5 else '(10 L)'}"
            ),
        )
    if run["workers"] > 9:
        return "delta", rule
    names = {"none": "static", "option1": "option 1", "option2": "option 2, adaptive"}
    return "rounds" if spec["task"]["start"] is None else "optimum", names[spec["method"]["filter"]]


def read(engine: Engine, keys: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs with these keys that have a result, with ``spec`` as a mapping, and their
    evaluations of x_1.
    """
    runs, evaluations = [], []
    for start in range(0, len(keys), MOST_KEYS):
        # keys are part of the SQL text: only letters and digits may be
        chosen = ", ".join(f"'{key}'" for key in keys[start : start + MOST_KEYS] if key.isalnum())
        which = f"WHERE run_key IN ({chosen}) AND {HAS_RESULT}"
        runs.append(query(engine, f"SELECT * FROM runs {which} ORDER BY id").frame())
        joined = (
            f"FROM evaluations JOIN runs ON runs.id = run_id {which} AND round = 0 ORDER BY run_id"
        )
        evaluations.append(query(engine, f"SELECT run_id, round, gap {joined}").frame())
    return with_specs(engine, pd.concat(runs, ignore_index=True)), pd.concat(
        evaluations, ignore_index=True
    )


def measure(runs: pd.DataFrame, evaluations: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run: ``part``, ``setting``, ``seed``, ``x``, ``value``, ``whole``,
    ``bound``, ``theory``, ``control``.

    ``whole`` is (1/T) sum_{t <= T} |grad f(x_t)|^2; T is the run's own number of rounds. ``value``
    is the same, except in two parts: there it is the excess over the run of the same seed that has
    the floor. For ``switches`` this is the run with static identities; for ``delta`` it is the run
    without Byzantine workers. ``bound`` is the theorem's bound of ``whole``; NaN without a theorem.
    ``control`` is True for the runs of a null control.
    """
    rows = []
    groups = dict(tuple(evaluations.groupby("run_id")))
    for run in runs.to_dict("records"):
        run_evaluations = groups.get(run["id"])
        if run_evaluations is None or run_evaluations["gap"].isna().iloc[0]:
            continue  # its first evaluation is skipped
        part, setting = part_of(run)
        gap = GAP if part == "optimum" else float(run_evaluations["gap"].iloc[0])
        rows.append(
            {
                "part": part,
                "setting": setting,
                "id": run["id"],
                "seed": run["seed"],
                "place": run["switching"] if part == "switches" else _x(part, run),
                "x": _x(part, run),
                "value": _mean_square(run),
                "whole": _mean_square(run),
                "bound": _bound(setting, run, gap),
                "theory": _shape(part, setting, run, gap),
                "control": is_control(run),
                "diverged": run["status"] == DIVERGED,
                "still": (part == "switches" and run["spec"]["switching"]["name"] == "static")
                or (part == "delta" and run["byzantine"] == 0),
            }
        )
    points = pd.DataFrame(rows)
    if points.empty:
        return points
    still = points[points["still"]].set_index(["part", "setting", "seed"])["value"]
    moving = ~points["part"].isin(["rounds", "optimum"])
    places = pd.MultiIndex.from_frame(points.loc[moving, ["part", "setting", "seed"]])
    points.loc[moving, "value"] -= still.reindex(places).to_numpy()
    return points[~points["still"]].drop(columns="still")


def cells(measured: pd.DataFrame) -> pd.DataFrame:
    """Return one row per point: ``part``, ``setting``, ``x``, ``mean``, ``std`` over seeds (NaN for
    one), ``n``, ``bound``, ``theory``, ``whole``, the mean with its floor, ``diverged``, the number
    of diverged runs, and ``control``, the mean of the null control.

    The control is 0 from the optimum, where plain gradient descent stays, and for every excess: the
    run that is subtracted lacks what the excess is due to.
    """
    if measured.empty:
        return pd.DataFrame(
            columns=[
                "part",
                "setting",
                "x",
                "mean",
                "std",
                "n",
                "bound",
                "theory",
                "whole",
                "diverged",
                "control",
            ]
        )
    place = ["part", "setting", "place"]
    control = measured[measured["control"]].groupby(place)["value"].mean()
    groups = measured[~measured["control"]].groupby(place, sort=False)
    columns = {
        "x": groups["x"].mean(),
        **seed_means(groups["value"]),
        "bound": groups["bound"].mean(),
        "theory": groups["theory"].mean(),
        "whole": groups["whole"].agg(lambda values: values.mean(skipna=False)),
        "diverged": groups["diverged"].sum(),
    }
    means = (
        pd.DataFrame(columns)
        .assign(control=lambda points: control.reindex(points.index))
        .reset_index()
        .drop(columns="place")
    )
    means.loc[means["part"] != "rounds", "control"] = 0.0
    return means.sort_values(["part", "setting", "x"], kind="stable", ignore_index=True)


def slopes(points: pd.DataFrame) -> list[Slope]:
    """Return the exponent of every series with points, in the order of ``PARTS``."""
    fitted = []
    for part, about in PARTS.items():
        for setting, predicted in about.predicted.items():
            means = series(points, part, setting)
            if means.empty:
                continue
            fit = power_law(list(means["x"]), list(means["mean"])) or PowerLaw(
                math.nan, math.nan, math.nan, math.nan, 0
            )
            theory = power_law(list(means["x"]), list(means["theory"]))
            control = power_law(list(means["x"]), list(means["control"]))
            fitted.append(
                Slope(
                    *(part, setting, about.against, about.quantity),
                    points=fit.points,
                    left_out=len(means) - fit.points,
                    unclear=int((means["mean"] <= half_width(means["std"], means["n"])).sum()),
                    seeds=int(means["n"].min()),
                    slope=fit.slope,
                    low=fit.low,
                    high=fit.high,
                    predicted=predicted,
                    of_bound=theory.slope if theory else math.nan,
                    share=float((means["whole"] / means["bound"]).max()),
                    control=(math.nan,) * 3
                    if control is None
                    else (control.slope, control.low, control.high),
                    controlled=bool(means["control"].notna().all()),
                )
            )
    return fitted


def series(points: pd.DataFrame, part: str, setting: str) -> pd.DataFrame:
    """Return the points of one series, without points at which the varied quantity has no effect,
    such as delta = 0.
    """
    return points[(points["part"] == part) & (points["setting"] == setting) & (points["x"] > 0)]


def _x(part: str, run: Mapping[str, Any]) -> float:
    """Return the value on the axis: the planned T (which sets the learning rate), delta, or the
    share of dynamic rounds.
    """
    if part in ("rounds", "optimum"):
        return float(planned(run["budget"], run["spec"]["method"]["jmax"])[0])
    return float(
        run["byzantine"] / run["workers"]
        if part == "delta"
        else run["dynamic_rounds"] / run["rounds"]
    )


def _mean_square(run: Mapping[str, Any]) -> float:
    """Return the mean of |grad f(x_t)|^2 over a run's rounds; infinite if the run diverged, and NaN
    if it is unknown.
    """
    total = math.inf if run["status"] == DIVERGED else run["squared_gradients"]
    return math.nan if total is None else float(total) / run["rounds"]


def _setting(run: Mapping[str, Any]) -> tuple[float, float, int, int, float, float]:
    """Return T, L, m, f, V (the noise's length) and C V of a run on the quadratic."""
    spec = run["spec"]
    T = float(planned(run["budget"], spec["method"]["jmax"])[0])
    V = spec["task"]["sigma"] * math.sqrt(spec["task"]["dimension"])
    m, f = run["workers"], run["byzantine"]
    return T, spec["task"]["condition"], m, f, V, universal_coefficient(m, T) * V


def _bound(setting: str, run: Mapping[str, Any], gap: float) -> float:
    """Return the theorem's bound of a run's value; NaN if no theorem covers it."""
    T, L, m, f, V, CV = _setting(run)
    if setting == "static":
        return static_bound(T, KAPPAS["cwmed"](m, f) + 1 / m, V, L, gap)
    if setting == "option 1":
        return dynamic_bound(T, 2 * KAPPAS["cwmed"](m, f) + 1 / m, CV, L, gap)
    if setting in ("option 2, adaptive", "mfm"):
        largest = L / 2 * run["spec"]["task"]["radius"] ** 2
        zeta = 2 * largest / run["learning_rate"] + run["learning_rate"] * L
        return adaptive_bound(T, gamma_mfm(m, f), CV, zeta, m)
    return math.nan


def _shape(part: str, setting: str, run: Mapping[str, Any], gap: float) -> float:
    """Return theory's growth of a run's value: its bound, sqrt(gamma) over delta = 0, or the number
    of dynamic rounds.
    """
    m = run["workers"]
    gammas: dict[str, Callable[[int], float]] = {
        "mfm": lambda f: gamma_mfm(m, f),
        "cwmed": lambda f: 2 * KAPPAS["cwmed"](m, f) + 1 / m,
        "nnm+cwmed": lambda f: 2 * KAPPAS["nnm+cwmed"](m, f) + 1 / m,
    }
    if part == "delta":
        return math.sqrt(gammas[setting](run["byzantine"])) - math.sqrt(gammas[setting](0))
    return _x(part, run) if part == "switches" else _bound(setting, run, gap)
