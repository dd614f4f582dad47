"""A run that diverged counts the same, whichever command shows it."""

from __future__ import annotations

import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dynabro_cli.answers.analysis.diverged import counted_as
from dynabro_cli.components.tasks._api import REGISTRY, TaskSetting
from dynabro_cli.runs.store.views import CLASSES
from tests.answers.figures.grids import SMALL, fill, planned
from tests.answers.figures.test_figures import read
from tests.cli.conftest import Dynabro
from tests.runs.store.made import change

ONE = ("method=sgd", "learning_rate=0.01", "switching=periodic:K=5")


def test_an_accuracy_is_one_over_the_tasks_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNABRO_DATA", str(tmp_path))
    X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 4
    np.savez(tmp_path / "mine.npz", X=X, y=y)
    for task, classes in (
        *(("digits", 10), ("mnist", 10), ("emnist:split=letters", 26), ("cifar100", 100)),
        *(("npz:file=mine.npz", 4), ("npz:file=missing.npz", math.nan), ("of-a-plugin", math.nan)),
    ):
        guess = counted_as("final_accuracy", task, "mlp", None)
        assert guess == pytest.approx(1 / classes, nan_ok=True), task
    # other data than the run's may have other classes
    other = json.dumps({"data/npz:file=mine.npz": "0" * 12})
    assert math.isnan(counted_as("final_accuracy", "npz:file=mine.npz", "mlp", other))
    for column, with_model, objective in (
        ("final_accuracy", 0.1, math.nan),
        ("validation_accuracy", 0.1, math.nan),
        ("final_loss", math.inf, math.nan),
        ("final_gap", math.nan, math.inf),
        ("dip", math.nan, math.nan),
        ("metric:mine", math.nan, math.nan),
    ):
        numbers = counted_as(column, "digits", "mlp", None), counted_as(column, "q", None, None)
        assert numbers == pytest.approx((with_model, objective), nan_ok=True), column


def test_sql_knows_the_classes_of_the_tasks(tmp_path: Path) -> None:
    for count, tasks in CLASSES.items():
        for task in tasks:
            shape = REGISTRY.parse(task).build(TaskSetting(tmp_path)).shape
            assert shape is not None
            assert shape.classes == count


@pytest.mark.thorough
def test_every_command_has_the_same_mean(folder: Path, dynabro: Dynabro) -> None:
    """Two of three runs of SGD diverged, with other last accuracies than guessing."""
    rows = planned("digits-periodic", *SMALL, *ONE, "seeds=0..2")
    rows += planned("digits-periodic", *SMALL, *ONE, "seeds=0..2", "aggregator=gm")
    fill(
        folder / "results.db",
        rows,
        diverged=lambda row: row["aggregator"] == "cwtm" and row["seed"] < 2,
    )
    kept = read(folder / "results.db", "SELECT * FROM runs").query("status == 'finished'")
    means = kept.groupby("aggregator")["final_accuracy"].mean().to_dict()
    mean = means["cwtm"] = (0.1 + 0.1 + means["cwtm"]) / 3

    def close(numbers: object) -> None:
        assert numbers == pytest.approx(mean, rel=1e-6)

    assert dynabro("plot", "final", "--x", "aggregator", "--hue", "method").code == 0
    drawn = pd.read_csv("plots/final.csv").set_index("aggregator").loc["cwtm"]
    close(drawn["mean"])
    assert (drawn["diverged"], drawn["n"]) == (2, 3)
    assert dynabro("plot", "matrix", "--hue", "aggregator", "--format", "png,html").code == 0
    close(pd.read_csv("plots/matrix.csv").set_index("row").loc["cwtm", "mean"])
    assert "\N{MULTIPLICATION SIGN}2/3" in Path("plots/matrix.html").read_text()
    assert dynabro("plot", "heatmap", "--x", "method").code == 0
    close(pd.read_csv("plots/heatmap.csv").set_index("aggregator").loc["cwtm", "mean"])
    assert dynabro("plot", "curves", "--hue", "aggregator").code == 0
    curve = pd.read_csv("plots/curves.csv").query("aggregator == 'cwtm'")
    lost = read(folder / "results.db", "SELECT * FROM evaluations").groupby("run_id")
    last = lost["test_accuracy"].last()[kept.query("aggregator == 'cwtm'")["id"]].item()
    assert curve["mean"].iloc[-1] == pytest.approx((0.2 + last) / 3)

    sides = ("compare", "aggregator=cwtm", "aggregator=gm")
    (row,) = json.loads(dynabro(*sides, "--json").out)
    close(row["mean_a"])
    assert (row["diverged_a"], row["diverged_b"]) == (2, 0)
    assert "(2 of 3 diverged)" in dynabro(*sides).out
    page = dynabro("report", "--out", "-").out
    assert f"{mean:.3f}" in page
    assert "2 of 3 diverged" in page
    for command in (
        ("export", "final", "--csv", "-"),
        ("query", "SELECT * FROM final_accuracy", "--csv"),
    ):
        table = pd.read_csv(io.StringIO(dynabro(*command).out)).set_index("aggregator")
        close(table.loc["cwtm", "mean"])
        assert table.loc["cwtm", "diverged"] == 2


def test_infinite_losses_are_ranked_and_not_left_out(folder: Path, dynabro: Dynabro) -> None:
    rows = planned("momentum-fails-gap", *SMALL, "seeds=0..1", "switching=rotating")
    first = rows[0]["aggregator"]
    fill(folder / "results.db", rows, diverged=lambda row: row["aggregator"] == first)
    others = {row["aggregator"] for row in rows} - {first}
    assert others
    where = ("--where", f"attack = '{rows[0]['attack']}' AND method = '{rows[0]['method']}'")
    outcome = dynabro("plot", "matrix", "--hue", "aggregator", *where)
    assert outcome.code == 0
    cells = pd.read_csv("plots/matrix.csv").set_index("row")
    assert np.isinf(cells.loc[first, "mean"])
    assert not cells.loc[first, "best"]
    assert cells.loc[first, "mean_rank"] == cells["mean_rank"].max()
    (row,) = json.loads(
        dynabro("compare", f"aggregator={first}", f"aggregator={min(others)}", *where, "--json").out
    )
    assert (row["diverged_a"], row["p_wilcoxon"], row["better"]) == (2, 0.5, "")


@pytest.mark.parametrize("command", [("plot", "matrix"), ("plot", "curves"), ("plot", "final")])
def test_a_database_of_diverged_runs(
    command: tuple[str, ...], folder: Path, dynabro: Dynabro
) -> None:
    rows = planned("momentum-fails-gap", *SMALL, "seeds=0..1", "switching=rotating")[:8]
    fill(folder / "results.db", rows, diverged=lambda _: True)
    change(folder / "results.db", "UPDATE runs SET final_gap = NULL")
    outcome = dynabro(*command)
    assert (outcome.code, outcome.err) == (0, "")


def test_what_no_diverged_run_has_is_said(folder: Path, dynabro: Dynabro) -> None:
    rows = planned("digits-periodic", *SMALL, *ONE, "seeds=0..2")
    rows += planned("digits-periodic", *SMALL, *ONE, "seeds=0..2", "aggregator=gm")
    fill(folder / "results.db", rows, diverged=lambda _: True)
    outcome = dynabro("plot", "final", "--metric", "dip")
    assert outcome.code == 2
    assert "no run here has a number for metric=dip (6 of 6 diverged)" in outcome.err
    outcome = dynabro("compare", "aggregator=cwtm", "aggregator=gm", "--metric", "gap")
    assert "A: 3 runs with these values, without a number for metric=gap (3 of 3" in outcome.err


def test_the_view_of_1_1_0_is_replaced(tmp_path: Path, dynabro: Dynabro) -> None:
    path = tmp_path / "old.db"
    shutil.copy(Path(__file__).parents[3] / "results.db.example", path)
    sql = "SELECT sql FROM sqlite_master WHERE name = 'final_accuracy'"
    dynabro("query", "SELECT 1", "--db", str(path))
    before = read(path, sql)["sql"].item()
    rows = planned("digits-periodic", *SMALL, *ONE, "seeds=90")
    fill(path, rows)
    assert read(path, sql)["sql"].item() != before or "counted" in before
    sql = "SELECT mean, n, diverged FROM final_accuracy WHERE diverged = n AND task = 'digits'"
    assert read(path, sql)["mean"].to_numpy() == pytest.approx(0.1)
