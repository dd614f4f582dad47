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
from matplotlib.figure import Figure
from matplotlib.text import Text

from dynabro_cli.answers.analysis.diverged import counted_as
from dynabro_cli.components.tasks._api import REGISTRY, TaskSetting
from dynabro_cli.runs.store.views import CLASSES
from tests.answers.figures.grids import SMALL, fill, planned
from tests.answers.figures.test_figures import read
from tests.cli.conftest import Dynabro
from tests.runs.store.made import change

EXAMPLE = Path(__file__).parents[3] / "results.db.example"
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
    shutil.copy(EXAMPLE, path)
    sql = "SELECT sql FROM sqlite_master WHERE name = 'final_accuracy'"
    dynabro("query", "SELECT 1", "--db", str(path))
    before = read(path, sql)["sql"].item()
    rows = planned("digits-periodic", *SMALL, *ONE, "seeds=90")
    fill(path, rows)
    assert read(path, sql)["sql"].item() != before or "counted" in before
    sql = "SELECT mean, n, diverged FROM final_accuracy WHERE diverged = n AND task = 'digits'"
    assert read(path, sql)["mean"].to_numpy() == pytest.approx(0.1)


KINDS = {
    "final": 1,
    "curves": 1,
    "curves --metric loss": 1,
    "heatmap --x method": 0,
    "matrix": 0,
    "histogram": 0,
    "histogram --facet aggregator": 0,
    "timeline --where seed=0": 1,
    "timeline --where seed=0 --metric loss": 1,
}
"""Plots of runs with one that diverged, and the crosses in them; others mark it in words."""


def crosses(figure: Figure) -> list[tuple[float, float]]:
    """Places of crosses over diverged runs."""
    return [
        tuple(map(float, point))
        for axes in figure.axes
        for line in axes.lines
        if line.get_marker() == "x" and line.get_path_effects()
        for point in line.get_xydata()
    ]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that a command saves."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


def test_every_plot_of_runs_marks_the_diverged(
    folder: Path, dynabro: Dynabro, drawn: list[Figure]
) -> None:
    rows = planned("digits-periodic", *SMALL, *ONE, "seeds=0..2")
    fill(folder / "results.db", rows, diverged=lambda row: row["seed"] == 0)
    for options, count in KINDS.items():
        assert dynabro("plot", *options.split()).code == 0, options
        figure = drawn.pop()
        words = " ".join(text.get_text() for text in figure.findobj(Text))
        assert len(crosses(figure)) == count, options
        assert count or "\N{MULTIPLICATION SIGN}1/3" in words, options
        assert "diverged" in words, options


def test_a_timeline_ends_with_the_number_that_counts(
    folder: Path, dynabro: Dynabro, drawn: list[Figure]
) -> None:
    rows = planned("digits-periodic", *SMALL, *ONE, "seeds=0")
    fill(folder / "results.db", rows, diverged=lambda _: True)
    assert dynabro("plot", "timeline").code == 0
    line = next(line for line in drawn[0].axes[0].lines if line.get_marker() != "x")
    assert line.get_xydata()[-1].tolist() == [39, 0.1]
    assert crosses(drawn[0]) == [(39, 0.1)]
    assert line.get_xydata()[-2][0] == 39
    change(folder / "results.db", "UPDATE evaluations SET test_loss = 9e999 WHERE round > 0")
    assert dynabro("plot", "timeline", "--metric", "loss").code == 0
    assert crosses(drawn[1]) == [(39, 0.97)]


def test_the_path_of_a_diverged_run_ends_at_the_edge(
    folder: Path, dynabro: Dynabro, drawn: list[Figure]
) -> None:
    rows = planned("momentum-fails-gap", *SMALL, "seeds=0")
    lost = rows[0]["run_key"]
    fill(folder / "results.db", rows, diverged=lambda row: row["run_key"] == lost)
    for end in ("[1e200, 0]", "[NaN, 0]", "[Infinity, -Infinity]"):
        for where, point in (("= 20", end), ("BETWEEN 10 AND 19", "[1e99, 0]")):
            sql = f"UPDATE evaluations SET x = '{point}' WHERE run_id = 1 AND round {where}"
            change(folder / "results.db", sql)
        figure_of_sweep = ("momentum-fails-paths", "--set", "budget=40", "--set", "eval_every=10")
        assert dynabro("plot", *figure_of_sweep).code == 0
        ((x, _),) = crosses(drawn[-1])
        axes = drawn[-1].axes[0]
        assert x == pytest.approx(axes.get_xlim()[1])
        assert axes.get_xlim()[1] < 4
        assert "x: runs diverged" in drawn[-1].get_suptitle()


def test_searches_mark_trials_with_a_diverged_run(dynabro: Dynabro, drawn: list[Figure]) -> None:
    where = "search LIKE 'worst-within: method=dynabro, aggregator=%caf%'"
    for condition in (where, "search LIKE 'worst-within: method=dynabro, %'"):
        assert dynabro("plot", "search", "--db", str(EXAMPLE), "--where", condition).code == 0
        trials = pd.read_csv("plots/search.csv")
        lost = trials[trials["diverged"] > 0]
        assert len(lost) > 2
        for end in zip(lost["number"], lost["value"].fillna(0.97), strict=True):
            assert any(end == pytest.approx(place) for place in crosses(drawn[-1])), end


def test_a_rate_with_a_diverged_run_is_infinite(
    tmp_path: Path, dynabro: Dynabro, drawn: list[Figure]
) -> None:
    path = tmp_path / "rates.db"
    shutil.copy(EXAMPLE, path)
    lost = read(
        path,
        "SELECT id FROM runs WHERE sweep = 'verify-rate' AND byzantine > 0 AND workers <= 9 "
        "ORDER BY id LIMIT 1",
    )["id"].item()
    change(path, f"UPDATE runs SET status = 'diverged', final_gap = NULL WHERE id = {lost}")
    assert dynabro("plot", "rate", "--db", str(path)).code == 0
    numbers = pd.read_csv("plots/rate.csv")
    marked = numbers[numbers["diverged"] > 0]
    assert len(marked) == 1
    assert np.isinf(marked["mean"]).all()
    assert crosses(drawn[0]) == [(pytest.approx(marked["x"].item()), 0.97)]
