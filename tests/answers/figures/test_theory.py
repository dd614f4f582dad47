"""The figures of ``dynabro verify``: what searches have found, and exponents."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write import kappas
from tests.answers.theory.made_rates import fill
from tests.cli.conftest import Dynabro
from tests.runs.store.made import finding


@pytest.mark.thorough
def test_rate(dynabro: Dynabro, folder: Path) -> None:
    fill(folder / "rates.db", spread=0.1)
    outcome = dynabro("plot", "rate", "--db", "rates.db", "--set", "seeds=0..1", "--check")
    assert (outcome.code, outcome.out, outcome.err) == (0, "plots/rate.png  (172 runs)\n", "")
    drawn = pd.read_csv("plots/rate.csv")
    assert len(drawn) == 2 * 3 * 5 + 3 * 8 + 2 * 6  # of delta the values over the one at 0
    fits = drawn.drop_duplicates(["part", "setting"]).set_index(["part", "setting"])
    assert fits.loc[("rounds", "static"), "slope"] == pytest.approx(-0.5, abs=1e-3)
    assert fits.loc[("delta", "mfm"), ["slope", "predicted"]].tolist() == [
        pytest.approx(0.8, abs=1e-3),
        1.0,
    ]
    assert fits.loc[("switches", "eta = 1/L"), "slope"] == pytest.approx(1.2, abs=1e-3)
    static = drawn[(drawn["part"] == "rounds") & (drawn["setting"] == "static")]
    assert static["mean"].tolist() == pytest.approx(
        [7 * T**-0.5 for T in (128, 256, 512, 1024, 2048)]
    )
    assert static["control"].tolist() == pytest.approx(
        [6 * T**-0.7 for T in (128, 256, 512, 1024, 2048)]
    )
    assert fits.loc[("rounds", "static"), "control_slope"] == pytest.approx(-0.7, abs=1e-3)
    assert set(drawn["n"]) == {2}


@pytest.mark.thorough
def test_kappa(dynabro: Dynabro, folder: Path) -> None:
    """The larger ratio of two searches is shown, because both are lower bounds."""
    engine = open_for_writing(str(folder / "results.db"))
    rows = [finding(), finding(seed=1, empirical=1.5), finding(seed=2, empirical=1.25)]
    rows.append(finding(rule="mean", empirical=1e6, unbounded=True, proved=None))
    rows.append(finding(workers=5, worst=[[0.0]] * 5, proved=4.0))
    kappas.store(engine, rows, "1.0")
    engine.dispose()
    outcome = dynabro("plot", "kappa")
    assert (outcome.code, outcome.out, outcome.err) == (0, "plots/kappa.png\n", "")
    assert sorted(path.name for path in Path("plots").iterdir()) == ["kappa.csv", "kappa.png"]
    drawn = pd.read_csv("plots/kappa.csv")
    assert drawn[["rule", "workers", "empirical", "searches", "evaluations"]].values.tolist() == [
        ["cwmed", 3, 1.5, 3, 300],
        ["mean", 3, 1e6, 1, 100],
        ["cwmed", 5, 1.0, 1, 100],
    ]
    assert drawn["proved"].fillna(0).tolist() == [16.0, 0.0, 4.0]
    assert dynabro("plot", "kappa", "--where", "workers = 5", "--json").code == 0
    assert len(pd.read_csv("plots/kappa.csv")) == 1


def test_kappa_without_any(dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro("plot", "kappa")
    assert outcome.code == 66
    assert outcome.problems == ["no search for a kappa is stored here. Try: dynabro verify kappa"]
    assert dynabro("plot", "kappa", "--where", "seed = 1").problems == [
        "where=seed = 1: it holds for no stored search for a kappa. Try: another condition"
    ]
    wrong = dynabro("plot", "kappa", "--where", "seeed = 1")
    assert wrong.code == 2
    assert dynabro("plot", "kappa", "--hue", "method").problems == [
        "kappa shows no runs; --x and the like are for the plots of any runs"
    ]
