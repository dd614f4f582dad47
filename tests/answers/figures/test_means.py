"""A mean is over seeds only, in every plot and table; runs that met the same adversary are
compared.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from dynabro_cli.answers.figures._api import GRIDS
from tests.answers.figures.grids import SMALL, Row, fill, planned
from tests.cli.conftest import Dynabro
from tests.runs.store import made

VARIED = {
    "learning_rate": ("0.1", "0.2"),
    "validation": ("0", "0.1"),
    "attack_entry": ("gradient", "state"),
}
"""Fields of a run, with two values."""
PLOTS = (
    ("final", "--hue", "aggregator"),
    ("curves",),
    ("heatmap",),
    ("matrix",),
    ("matrix", "--hue", "aggregator", "--x", "switching"),
    ("mine",),
)
TABLES = (("compare", "--all", "aggregator"), ("compare", "cwtm", "cwmed"))


def rows_of(sweep: str, *settings: Mapping[str, str]) -> dict[str, Row]:
    """The runs of a sweep with each of some settings."""
    small = dict(text.split("=") for text in SMALL)
    texts = [[f"{name}={value}" for name, value in (small | dict(own)).items()] for own in settings]
    return {row["run_key"]: row for own in texts for row in planned(sweep, *own)}


def store(path: Path, rows: Mapping[str, Row], sweep: str = "mine") -> Path:
    fill(path, list(rows.values()))
    made.change(path, f"UPDATE runs SET sweep = '{sweep}'")
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("field", VARIED)
def test_no_mean_is_over_two_values_of_a_field(field: str, folder: Path, dynabro: Dynabro) -> None:
    """Each seed has another value: a cell has one of them, and no more than one run."""
    usual = {
        "method": "momentum",
        "learning_rate": "0.1",
        "switching": "static",
        "attack": "sf",
        "attack_entry": "gradient",
    }
    every = [
        usual | {"aggregator": rule, "seeds": str(seed), field: value}
        for rule in ("cwtm", "cwmed")
        for seed, value in enumerate(VARIED[field])
    ]
    store(Path("results.db"), rows_of("digits-periodic", *every))
    for words in PLOTS:
        outcome = dynabro("plot", *words, "--name", "drawn")
        if outcome.code == 0:
            assert pd.read_csv("plots/drawn.csv")["n"].max() == 1, words
        else:
            assert (outcome.code, words, f"the runs differ in {field}" in outcome.err) == (
                2,
                ("heatmap",),
                True,
            ), outcome.err
    for words in TABLES:
        outcome = dynabro(*words, "--format", "csv")
        if outcome.code == 0:
            assert pd.read_csv(io.StringIO(outcome.out))["n"].max() == 1, words
        else:
            assert (outcome.code, "attack=sf: the runs met it in 2 readings" in outcome.err) == (
                2,
                True,
            ), (words, outcome.err)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mnist-sf-cwtm", "mnist-sf-cwtm-curves"])
def test_a_figure_of_a_sweep_does_not_mix_what_differs(
    name: str, folder: Path, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with the sweep's name varies another field with the seed."""
    sweep = GRIDS[name].sweep
    settings = [
        {"seeds": str(seed), "batch_size": str(16 * (seed + 1)), "switching": "static"}
        for seed in (0, 1)
    ]
    rows = rows_of(sweep, *settings)
    store(Path("results.db"), rows, sweep)
    from dynabro_cli.cli import studio

    monkeypatch.setattr(studio, "_planned", lambda *_: list(rows.values()))
    assert dynabro("plot", name).code == 0
    drawn = pd.read_csv(f"plots/{name}.csv")
    assert drawn["n"].max() == 1
    series = drawn.loc[drawn["method"] == "sgd", "series"]
    assert set(series) == {"SGD, batch size 16", "SGD, batch size 32"}


@pytest.mark.thorough
def test_curves_of_other_evaluations_and_histograms_of_other_workers(
    folder: Path, dynabro: Dynabro
) -> None:
    usual = {"method": "sgd", "switching": "static", "learning_rate": "0.1"}
    rows = rows_of(
        "digits-periodic", usual | {"seeds": "0"}, usual | {"seeds": "1", "eval_every": "20"}
    )
    store(Path("results.db"), rows)
    assert dynabro("plot", "final").code == 0
    # the final number does not depend on it
    assert pd.read_csv("plots/final.csv")["n"].tolist() == [2]
    assert (
        "eval_every=10: a mean over runs 1 and 2 would mix it with eval_every=20"
        in dynabro("plot", "curves").err
    )
    store(
        Path("more.db"),
        rows_of("digits-periodic", usual, usual | {"workers": "13", "byzantine": "5"}),
    )
    outcome = dynabro("plot", "histogram", "--db", "more.db")
    assert (
        outcome.code,
        "workers=17: its rounds would be counted together with workers=13" in outcome.err,
    ) == (2, True)
    for column in ("workers", "byzantine"):
        assert (
            dynabro(
                "plot", "histogram", "--db", "more.db", "--facet", column, "--name", column
            ).code
            == 0
        )
        shares = pd.read_csv(f"plots/{column}.csv").groupby(column)["share"].sum()
        assert shares.tolist() == pytest.approx([1, 1])


@pytest.fixture
def flagship(folder: Path) -> Path:
    """Methods without a memory under the texts of before, and momentum under the paper's
    reading.
    """
    old, usual = (
        {"attack": "sf", "attack_entry": "gradient"},
        {"seeds": "0..1", "learning_rate": "0.01"},
    )
    every = [
        {"method": method, **usual, **own}
        for method, own in (("sgd", old), ("dynabro", old), ("momentum", {}))
    ]
    return store(Path("results.db"), rows_of("mnist-sf-cwtm", *every), "mnist-sf-cwtm")


@pytest.mark.thorough
def test_runs_that_met_the_same_adversary_share_a_column(flagship: Path, dynabro: Dynabro) -> None:
    outcome = dynabro("compare", "--all", "method", "--format", "csv")
    cells = pd.read_csv(io.StringIO(outcome.out))
    assert cells.groupby("column")["row"].nunique().tolist() == [3] * 5
    assert "cells have no run" not in outcome.err
    outcome = dynabro("compare", "dynabro", "momentum", "--format", "csv")
    assert (outcome.code, len(outcome.out.splitlines())) == (0, 1 + 5)
    settings = [
        word for text in (*SMALL, "learning_rate=0.01", "seeds=0..1") for word in ("--set", text)
    ]
    assert dynabro("plot", "mnist-sf-cwtm", *settings).code == 0
    assert len(pd.read_csv("plots/mnist-sf-cwtm.runs.csv")) == 3 * 5 * 2
    outcome = dynabro("sweep", "mnist-sf-cwtm", *settings, "--dry-run")
    assert "30 stored in results.db, 10 to do" in outcome.out  # momentum 0.99 is not stored


@pytest.mark.thorough
def test_readings_are_panels_and_compare_asks_which(flagship: Path, dynabro: Dynabro) -> None:
    other = {
        "method": "momentum",
        "learning_rate": "0.01",
        "seeds": "0..1",
        "attack": "sf",
        "attack_entry": "gradient",
    }
    store(flagship, rows_of("mnist-sf-cwtm", other), "mnist-sf-cwtm")
    cells = pd.read_csv(io.StringIO(dynabro("compare", "--all", "method", "--format", "csv").out))
    readings = ["attack enters at the gradient", "attack enters at the state, negates=gradient"]
    assert cells.groupby("panel")["row"].nunique().to_dict() == dict.fromkeys(readings, 3)
    assert (cells["n"] == 2).all()
    for words in (
        ["final", "--hue", "method"],
        ["curves", "--hue", "method", "--where", "switching = 'static'"],
    ):
        assert dynabro("plot", *words, "--name", "drawn").code == 0
        assert set(pd.read_csv("plots/drawn.csv")["reading"]) == set(readings)
    outcome = dynabro("plot", "heatmap", "--name", "drawn")
    assert (outcome.code, "the runs differ in reading" in outcome.err) == (2, True)
    assert dynabro("plot", "heatmap", "--hue", "method", "--name", "drawn").code == 0
    assert set(pd.read_csv("plots/drawn.csv")["reading"]) == set(readings)
    outcome = dynabro("compare", "dynabro", "momentum")
    (line,) = outcome.problems
    assert (outcome.code, line.partition(".")[0]) == (
        2,
        "attack=sf: the runs met it in 2 readings, attack_entry=state or attack_entry=gradient",
    )
    typed = line.partition("Try: ")[2].split("'")[1::2]
    found = pd.read_csv(io.StringIO(dynabro("compare", *typed, "--format", "csv").out))
    own = cells[(cells["panel"] == readings[0]) & (cells["row"] == "DynaBRO")].set_index("column")[
        "mean"
    ]
    assert found["mean_a"].tolist() == pytest.approx(own.tolist())


def test_a_name_that_is_cut_short_is_one_strategy(folder: Path, dynabro: Dynabro) -> None:
    """The first letters of two strategies are equal: they are two columns."""
    store(
        Path("results.db"),
        rows_of("digits-bernoulli", {"seeds": "0..1", "method": "sgd", "aggregator": "cwtm"}),
    )
    cells = pd.read_csv(io.StringIO(dynabro("compare", "--all", "seed", "--format", "csv").out))
    assert cells["column"].nunique() == 6
