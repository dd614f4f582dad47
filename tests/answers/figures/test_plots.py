"""The plots of any runs: curves, final, heatmap, histogram and timeline."""

from __future__ import annotations

import itertools
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

import dynabro_cli
from dynabro_cli.answers.analysis.metrics import METRICS
from dynabro_cli.answers.analysis.results import Results
from dynabro_cli.answers.figures import _make
from dynabro_cli.answers.figures._panels import draw_finals
from dynabro_cli.answers.figures._style import Line
from dynabro_cli.answers.figures.any import _choice
from dynabro_cli.components.api import make_switching
from dynabro_cli.experiment.complete import answering
from dynabro_cli.runs.store.open.engine import open_for_writing
from tests.answers.figures.grids import AT_GRADIENT, SMALL, fill, planned
from tests.answers.figures.test_figures import read
from tests.cli.conftest import Dynabro
from tests.runs.store import made

PERIODIC = "task = 'digits' AND attack = 'sf' AND switching != 'periodic:K=10'"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rules and two attacks on digits, two seeds, besides one objective."""
    path = tmp_path_factory.mktemp("mixed") / "mixed.db"
    rows = {}
    for rule in ("cwtm", "cwmed"):
        for attack in ("sf", "ipm"):
            settings = (
                *SMALL,
                "attack_entry=gradient",
                f"aggregator={rule}",
                f"attack={attack}",
                "seeds=0..1",
            )
            for row in planned("digits-periodic", *settings):
                rows[row["run_key"]] = row
    fill(path, list(rows.values()))
    return path


@pytest.mark.thorough
def test_final(mixed: Path, dynabro: Dynabro) -> None:
    outcome = dynabro(
        "plot",
        "final",
        "--db",
        str(mixed),
        "--facet",
        "aggregator",
        "--hue",
        "method",
        "--where",
        "attack = 'sf'",
    )
    assert (outcome.code, outcome.out, outcome.err) == (0, "plots/final.png  (80 runs)\n", "")
    drawn = pd.read_csv("plots/final.csv")
    stored = read(mixed, "SELECT * FROM runs WHERE attack = 'sf'").groupby(
        ["aggregator", "switching", "method"]
    )
    assert len(drawn) == stored.ngroups == 40
    expected = stored["final_accuracy"].agg(["mean", "std"])
    assert sorted(drawn["mean"]) == pytest.approx(sorted(expected["mean"]), rel=1e-9)
    assert sorted(drawn["std"]) == pytest.approx(sorted(expected["std"]), rel=1e-9)
    assert set(drawn["n"]) == {2}
    assert set(drawn["series"]) >= {"SGD", "DynaBRO", "momentum β=0.99"}


def test_two_places_have_bars() -> None:
    """Bars from zero to the means of two places; lines through three."""
    looks = {"SGD": Line("#000000", "s", "-"), "DynaBRO": Line("#D55E00", "o", "-")}
    for count in (1, 2, 3):
        means = [0.25 + 0.125 * place for place in range(2 * count)]
        runs = pd.DataFrame(
            {
                "series": [name for name in looks for _ in range(count)],
                "switching": [*range(count)] * 2,
                "final_accuracy": means,
            }
        )
        numbers = runs.assign(mean=means, low=means, high=means, n=1, diverged=0)
        axes = Figure().subplots()
        draw_finals(axes, numbers, runs, dict.fromkeys(range(count), ""), looks)
        heights = [bar.get_height() for bar in axes.patches]
        assert heights == (means if count < 3 else [])
        assert all(bar.get_y() == 0 for bar in axes.patches)
        edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches)
        assert all(left[1] < right[0] for left, right in itertools.pairwise(edges))
        assert {line.get_linestyle() for line in axes.lines} <= {"None", "-"}
        assert any(line.get_linestyle() == "-" for line in axes.lines) == (count == 3)


def test_lines_are_never_means_of_different_runs(mixed: Path, dynabro: Dynabro) -> None:
    """If hue does not distinguish runs, the field that does is added to it."""
    where = "method IN ('sgd', 'dynabro') AND switching = 'static'"
    assert (
        dynabro("plot", "curves", "--db", str(mixed), "--hue", "attack", "--where", where).code == 0
    )
    drawn = pd.read_csv("plots/curves.csv")
    assert set(drawn["n"]) == {2}
    names = {
        f"{attack}, {method}, {rule}"
        for attack in ("sf", "ipm")
        for method in ("SGD", "DynaBRO")
        for rule in ("cwtm", "cwmed")
    }
    assert set(drawn["series"]) == names  # and not the learning rate, which goes with the method


def test_methods_of_one_label_are_told_apart(folder: Path, dynabro: Dynabro) -> None:
    """The noise bound is not part of a method's label, so both have their texts; ``jmax`` is."""
    settings = [*SMALL, *AT_GRADIENT, "learning_rate=0.01", "seeds=0..1"]
    rows = [
        row
        for bound in (1, 2)
        for row in planned("digits-periodic", *settings, f"method=dynabro:noise_bound={bound}")
    ]
    fill(folder / "results.db", [row for row in rows if row["switching"] == "static"])
    assert dynabro("plot", "final", "--x", "switching", "--hue", "method").code == 0
    drawn = pd.read_csv("plots/final.csv")
    assert (set(drawn["series"]), set(drawn["n"])) == (
        {"dynabro:noise_bound=1", "dynabro:noise_bound=2"},
        {2},
    )


@pytest.mark.thorough
def test_curves_of_a_gap(grids: Path, dynabro: Dynabro) -> None:
    where = (
        "task = 'quadratic' AND method = 'momentum' AND switching = 'static' AND "
        "aggregator = 'mean'"
    )
    for metric in ([], ["--metric", "gap"]):
        assert (
            dynabro(
                "plot", "curves", "--db", str(grids), "--x", "budget", *metric, "--where", where
            ).code
            == 0
        )
        drawn = pd.read_csv("plots/curves.csv")
        assert set(drawn["series"]) == {
            f"shift:lambda={strength}" for strength in ("0", "0.5", "1", "2", "5")
        }
        assert list(drawn["budget"].unique()) == [0, 10, 20, 30, 40]


@pytest.mark.thorough
def test_heatmap_shows_the_worst_case(mixed: Path, dynabro: Dynabro) -> None:
    outcome = dynabro(
        "plot", "heatmap", "--db", str(mixed), "--where", "method IN ('sgd', 'dynabro')"
    )
    assert (outcome.code, outcome.err) == (0, "")
    drawn = pd.read_csv("plots/heatmap.csv").set_index(["method", "aggregator", "switching"])
    means = (
        read(mixed, "SELECT * FROM runs WHERE method IN ('sgd', 'dynabro')")
        .groupby(["method", "aggregator", "switching", "attack"])["final_accuracy"]
        .mean()
    )
    assert len(drawn) == 20
    for cell, row in drawn.iterrows():
        assert row["mean"] == pytest.approx(means[cell].min(), rel=1e-9)
        assert row["attack"] == means[cell].idxmin()


def test_heatmap_of_losses_shows_the_highest(mixed: Path, dynabro: Dynabro) -> None:
    where = "method = 'sgd' AND switching = 'static' AND aggregator = 'cwtm'"
    assert (
        dynabro("plot", "heatmap", "--db", str(mixed), "--metric", "loss", "--where", where).code
        == 0
    )
    (drawn,) = pd.read_csv("plots/heatmap.csv").to_dict("records")
    means = read(
        mixed, f"SELECT attack, AVG(final_loss) AS loss FROM runs WHERE {where} GROUP BY 1"
    ).set_index("attack")["loss"]
    assert (drawn["attack"], drawn["mean"]) == (
        means.idxmax(),
        pytest.approx(means.max(), rel=1e-9),
    )


@pytest.mark.thorough
def test_histogram(grids: Path, dynabro: Dynabro) -> None:
    where = "switching LIKE 'bernoulli%' AND task = 'digits'"
    assert dynabro("plot", "histogram", "--db", str(grids), "--where", where).code == 0
    drawn = pd.read_csv("plots/histogram.csv")
    assert drawn.groupby("switching")["share"].sum().to_numpy() == pytest.approx(np.ones(6))
    rounds = read(
        grids, f"SELECT COUNT(*) AS n FROM rounds JOIN runs ON runs.id = run_id WHERE {where}"
    )
    assert drawn["rounds"].sum() == rounds["n"].iloc[0]


@pytest.mark.thorough
@pytest.mark.parametrize("clock", ["round", "computation"])
def test_timeline(clock: str, dynabro: Dynabro) -> None:
    """The Byzantine workers of a real run are those that the strategy says, and as many as the run
    has counted.
    """
    switching = "bernoulli:p=0.1,D=5,delta_max=0.4"
    how = (
        "--task",
        "digits",
        "--model",
        "logistic",
        "--budget",
        "60",
        "--batch-size",
        "4",
        "--seed",
        "3",
    )
    assert (
        dynabro("run", "--method", "dynabro", "--switching", switching, "--clock", clock, *how).code
        == 0
    )
    outcome = dynabro("plot", "timeline")
    assert (outcome.code, outcome.out, outcome.err) == (0, "plots/timeline.png  (1 run)\n", "")
    drawn = pd.read_csv("plots/timeline.csv")
    masks = drawn.filter(like="worker_").to_numpy()
    strategy = make_switching(switching, workers=17, byzantine=8, seed=3)
    assert masks.tolist() == [strategy.mask(tick).int().tolist() for tick in range(len(drawn))]
    rounds = read(Path("results.db"), "SELECT * FROM rounds")
    assert len(drawn) == (len(rounds) if clock == "round" else rounds["budget"].max())
    ticks = rounds["round"] if clock == "round" else rounds["budget"] - rounds["cost"]
    still = rounds["dynamic"] == 0
    assert list(masks[ticks[still]].sum(1)) == list(rounds["byzantine"][still])


HOW = (
    "--task",
    "digits",
    "--model",
    "logistic",
    "--budget",
    "60",
    "--batch-size",
    "4",
    "--seed",
    "3",
    "--workers",
    "9",
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        ("--switching", "adaptive:below=9,patience=7", "--method", "momentum"),
        ("--switching", "trace:file=s.csv,repeat=true", "--method", "dynabro:jmax=2"),
        (
            "--switching",
            "trace:file=s.csv,repeat=true",
            "--method",
            "dynabro:jmax=2",
            "--clock",
            "computation",
        ),
        (
            "--switching",
            "trace:file=s.csv",
            "--method",
            "dynabro:filter=option1",
            "--clock",
            "computation",
        ),
        ("--switching", "on-level:level=2,K=3", "--method", "dynabro:jmax=2"),
        (
            "--switching",
            "on-level:level=2,K=3",
            "--method",
            "dynabro:jmax=2",
            "--clock",
            "computation",
        ),
        ("--switching", "round-robin:K=4", "--method", "momentum", "--participation", "0.5"),
    ],
)
def test_timelines_of_schedules_that_are_stored_or_look_at_the_run(
    options: tuple[str, ...], dynabro: Dynabro
) -> None:
    """The masks have as many Byzantine workers as the rounds tell, and change where they do."""
    Path("s.csv").write_text("tick,byzantine\n0,1 2 3\n10,4 5\n15,\n25,9\n31,9\n")
    assert dynabro("run", "--byzantine", "3", *HOW, *options).code == 0
    Path("s.csv").unlink()  # what is stored is enough
    outcome = dynabro("plot", "timeline")
    assert (outcome.code, outcome.err) == (0, "")
    drawn = pd.read_csv("plots/timeline.csv")
    masks = drawn.filter(like="worker_").to_numpy()
    rounds = read(Path("results.db"), "SELECT * FROM rounds")
    by_round = "computation" not in options
    assert len(drawn) == (len(rounds) if by_round else rounds["budget"].max())
    starts = rounds["round"] if by_round else rounds["budget"] - rounds["cost"]
    for first, row in zip(starts, rounds.to_dict("records"), strict=True):
        own = masks[first : first + (1 if by_round else row["cost"])]
        before = masks[max(first - 1, 0)][None]
        assert own.sum(1).max() == row["byzantine"]
        assert row["switched"] == (np.diff(np.concatenate([before, own]), axis=0) != 0).any()
    assert masks.any()
    told = read(Path("results.db"), "SELECT tick, byzantine FROM identities").to_dict("records")
    assert bool(told) == ("adaptive" in options[1] or "trace" in options[1])
    for change in told:
        assert (np.flatnonzero(masks[change["tick"]]) + 1).tolist() == json.loads(
            change["byzantine"]
        )


@pytest.mark.thorough
def test_a_timeline_tells_who_answered(dynabro: Dynabro) -> None:
    how = ("--method", "momentum", "--byzantine", "3", "--participation", "0.5")
    assert dynabro("run", *HOW, *how).code == 0
    assert dynabro("plot", "timeline").code == 0
    answers = pd.read_csv("plots/timeline.csv").filter(like="answers_").to_numpy()
    assert answers.shape == (60, 9)
    assert [np.flatnonzero(row).tolist() for row in answers] == [
        answering(3, 0.5, 9, r).tolist() for r in range(60)
    ]


RECOVERY = (
    "dip",
    "largest_dip",
    "recovery_rounds",
    "recovery_budget",
    "worst_window",
    "acceptance",
    "aggregation_error",
)


@pytest.mark.thorough
def test_what_is_told_of_recovery_can_be_plotted(dynabro: Dynabro) -> None:
    """Only runs with a number count; a switch that never happens has no recovery."""
    for switching in ("periodic:K=7", "static"):
        for seed in ("0", "1"):
            how = (
                "--method",
                "momentum",
                "--byzantine",
                "4",
                "--switching",
                switching,
                "--eval-every",
                "5",
                "--seed",
                seed,
            )
            assert dynabro("run", *HOW[:-4], "--workers", "9", *how).code == 0
    stored = read(
        Path("results.db"),
        "SELECT runs.switching, recovery.* FROM recovery JOIN runs ON runs.id = run_id",
    )
    assert stored["reason"].notna().tolist() == [False, False, True, True]
    for metric in RECOVERY:
        for kind in ("final", "heatmap"):
            outcome = dynabro("plot", kind, "--metric", metric, "--name", kind)
            assert (outcome.code, outcome.err) == (0, "")
            drawn = pd.read_csv(f"plots/{kind}.csv").set_index("switching")
            expected = (
                stored.dropna(subset=metric).groupby("switching")[metric].agg(["mean", "size"])
            )
            assert drawn["mean"].to_dict() == pytest.approx(expected["mean"].to_dict(), rel=1e-8)
            assert drawn["n"].to_dict() == expected["size"].to_dict()
        assert len(drawn) == (1 if "dip" in metric or "recovery" in metric else 2)
    outcome = dynabro("plot", "curves", "--metric", "dip")
    assert outcome.problems == [
        "metric=dip is one number per run, not a curve. Try: dynabro plot final --metric dip"
    ]
    where = ("--where", "switching = 'static'")
    assert dynabro("plot", "final", "--metric", "dip", *where).problems == [
        "no run here has a number for metric=dip. Try: another one of " + ", ".join(METRICS)
    ]
    shown = json.loads(dynabro("show", "runs/1", "--json").out)["recovery"]
    assert shown["dip"] == stored["dip"][0]
    assert "recovery_rounds" in dynabro("show", "runs/1", "--all").out


def test_a_timeline_of_other_identities_is_refused(dynabro: Dynabro) -> None:
    how = ("--task", "digits", "--model", "logistic", "--budget", "8", "--batch-size", "4")
    assert dynabro("run", "--method", "sgd", *how).code == 0
    connection = sqlite3.connect("results.db")
    with connection:
        connection.execute("UPDATE rounds SET byzantine = 7 WHERE round = 5")
    connection.close()
    outcome = dynabro("plot", "timeline")
    assert outcome.code == 65
    assert outcome.problems == [
        (
            "identities computed from the seed differ from the run's: round 5 differs; was it made "
            "by another version of dynabro?"
        )
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["final", "--hue", "metod"],
            "hue=metod is not a column to plot by (did you mean 'method'?); legal: task, method, ",
        ),
        (
            ["final", "--x", "wall_seconds"],
            "x=wall_seconds is not a column to plot by; legal: task, method, ",
        ),
        (
            ["curves", "--x", "switching"],
            "x=switching is not a column to plot by; legal: samples, budget",
        ),
        (
            ["final", "--metric", "gap"],
            "no run here has a number for metric=gap. Try: another one of accuracy, loss, gap",
        ),
        (
            ["final", "--metric", "acuracy"],
            "metric=acuracy is not legal (did you mean 'accuracy'?); legal: ",
        ),
        (["histogram", "--hue", "method"], "a histogram has no hue. Try: no --hue"),
        (["timeline", "--x", "method"], "a timeline has no x. Try: no --x"),
        (
            ["curves"],
            (
                "the runs differ in 80 ways, and 16 lines can be distinguished; narrow them with "
                "--where, or"
            ),
        ),
    ],
)
def test_what_is_refused(arguments: list[str], problem: str, mixed: Path, dynabro: Dynabro) -> None:
    outcome = dynabro("plot", *arguments, "--db", str(mixed))
    assert outcome.code == 2
    (told,) = outcome.problems
    assert problem in told
    assert not Path("plots").exists()


def test_too_many_curves_are_counted_and_not_read(
    mixed: Path, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_choice, "MOST_PANELS", 1)
    monkeypatch.setattr(_make, "read_runs", None)
    where = "rule IN ('cwtm', 'cwmed')"
    for arguments in ((), ("--facet", "aggregator"), ("--where", where)):
        outcome = dynabro("plot", "curves", "--db", str(mixed), *arguments)
        assert outcome.code == 2
        (told,) = outcome.problems
        assert "the runs differ in 40 ways, and 16 lines" in told


def test_no_run_at_all(mixed: Path, dynabro: Dynabro, folder: Path) -> None:
    outcome = dynabro("plot", "final", "--db", str(mixed), "--where", "seed = 77")
    assert outcome.code == 66
    assert outcome.problems == [
        "where=seed = 77: it holds for no run that has a result. Try: another condition"
    ]
    open_for_writing("empty.db")
    outcome = dynabro("plot", "final", "--db", "empty.db")
    assert outcome.code == 66
    assert outcome.problems == [
        (
            "no run here has a result. Try: dynabro run --db empty.db or dynabro sweep --db "
            "empty.db, which make some"
        )
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["curves", "final", "heatmap"])
def test_the_defaults_show_small_databases(name: str, results: Path, dynabro: Dynabro) -> None:
    """Each of the two tasks has a panel; the objective has no accuracy, so its panel is empty."""
    outcome = dynabro("plot", name, "--format", "svg")
    assert (outcome.code, outcome.err) == (0, "")
    assert Path(f"plots/{name}.svg").read_text().startswith("<?xml")


def test_a_row_each_run(mixed: Path, dynabro: Dynabro, folder: Path) -> None:
    check: Callable[..., Any] = dynabro
    assert (
        check("plot", "final", "--db", str(mixed), "--where", "id = 1").out
        == "plots/final.png  (1 run)\n"
    )
    assert len(pd.read_csv(folder / "plots/final.runs.csv")) == 1
    assert pd.read_csv(folder / "plots/final.csv")["std"].isna().all()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["$\\frac$", "a$b$c", "\\alpha_{"])
def test_a_name_that_looks_like_mathematics_is_drawn_as_it_is(
    name: str, mixed: Path, dynabro: Dynabro, folder: Path, tmp_path: Path
) -> None:
    """Matplotlib would parse it, and raise an exception for what is not mathematics."""
    database = shutil.copy(mixed, tmp_path / "named.db")
    made.change(database, f"UPDATE runs SET sweep = '{name}'")
    outcome = dynabro(
        "plot",
        "final",
        "--db",
        str(database),
        "--facet",
        "sweep",
        "--hue",
        "method",
        "--where",
        "attack = 'sf' AND aggregator = 'cwtm'",
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert name in (folder / "plots/final.csv").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["final", "curves", "histogram"])
def test_panels_share_their_vertical_axis_unless_told(
    name: str, mixed: Path, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        "dynabro_cli.answers.figures._make._picture", lambda one, *_: drawn.append(one) or b"x"
    )
    facet, where = (
        ("switching" if name == "histogram" else "aggregator"),
        "attack = 'sf' AND method IN ('sgd', 'dynabro')",
    )
    words = ("plot", name, "--db", str(mixed), "--facet", facet, "--where", where)
    assert (dynabro(*words).code, dynabro(*words, "--free-y").code) == (0, 0)
    panels = [[axes for axes in one.figure.axes if axes.has_data()] for one in drawn]
    assert [own[0].get_shared_y_axes().joined(*own[:2]) for own in panels] == [True, False]


@pytest.mark.thorough
def test_an_axis_of_switching_rates_says_what_k_counts(
    folder: Path, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds or gradient computations, by the clock of a panel's runs; both if a panel has both."""
    sweep = ("mnist-sf-cwtm", *SMALL, *AT_GRADIENT, "method=dynabro", "seeds=0")
    fill(
        folder / "clocks.db",
        [row for clock in ("round", "computation") for row in planned(*sweep, f"clock={clock}")],
    )
    drawn: list[Any] = []
    monkeypatch.setattr(
        "dynabro_cli.answers.figures._make._picture", lambda one, *_: drawn.append(one) or b"x"
    )
    words = ("plot", "final", "--db", "clocks.db", "--hue", "method")
    assert (dynabro(*words, "--facet", "clock").code, dynabro(*words).code) == (0, 0)
    counted = [[axes.get_xlabel() for axes in one.figure.axes if axes.has_data()] for one in drawn]
    assert [
        text.removeprefix("K, ").removesuffix(" between two switches")
        for own in counted
        for text in own
    ] == [
        "rounds",
        "gradient computations",
        "rounds or gradient computations",
    ]
    titles = [axes.get_title() for axes in drawn[0].figure.axes if axes.has_data()]
    assert titles == ["identities change by the round", "identities change by the computation"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("final", "--facet", "switching"),
            "facet=switching: --x shows this column. Try: another column for one of them",
        ),
        (
            ("heatmap", "--hue", "switching"),
            "hue=switching: --x shows this column. Try: another column for one of them",
        ),
    ],
)
def test_a_column_that_is_to_be_shown_twice(
    words: tuple[str, ...], line: str, mixed: Path, dynabro: Dynabro
) -> None:
    outcome = dynabro("plot", *words, "--db", str(mixed))
    assert (outcome.code, outcome.problems) == (2, [line])


def test_a_vertical_axis_that_cannot_be_free(mixed: Path, dynabro: Dynabro) -> None:
    for name in ("heatmap", "timeline", "digits-periodic"):
        outcome = dynabro("plot", name, "--db", str(mixed), "--free-y")
        assert (outcome.code, outcome.out, len(outcome.problems)) == (2, "", 1)
        assert "--free-y" in outcome.problems[0]


@pytest.fixture
def own(folder: Path, dynabro: Dynabro) -> Callable[..., Any]:
    """Draws runs with settings that are not the defaults; returns the outcome and the figure."""
    settings = ("byzantine=4", "data=dirichlet:alpha=0.3", "learning_rate=0.05", "seeds=0..1")
    fill(folder / "results.db", planned("digits-periodic", *SMALL, *AT_GRADIENT, *settings))

    def plotted(*words: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            drawn: list[Any] = []
            draw = _make._picture
            patch.setattr(_make, "_picture", lambda of, kind: drawn.append(of) or draw(of, kind))
            outcome = dynabro("plot", "final", "--x", "switching", "--hue", "method", *words)
        assert outcome.code == 0
        return outcome, drawn[0].figure

    return plotted


@pytest.mark.thorough
def test_a_title_has_what_is_fixed_and_not_the_default(own: Callable[..., Any]) -> None:
    _, figure = own()
    title = figure.get_suptitle()
    assert "m = 17, f = 4, budget 40, rate 0.05, dirichlet:alpha=0.3" in title
    assert "fp32" not in title
    outcome, titled = own("--title", "Mine \u6570")
    assert titled.get_suptitle().split("\n") == ["Mine \u6570", *title.split("\n")]
    assert titled._suptitle.get_fontsize() == figure._suptitle.get_fontsize()
    assert outcome.problems == ["warning: letters that the font lacks are drawn as boxes: \u6570"]


@pytest.mark.thorough
def test_a_users_matplotlibrc_changes_nothing(folder: Path, own: Callable[..., Any]) -> None:
    own("--name", "a")
    with rc_context({"savefig.transparent": True, "font.size": 30}):
        own("--name", "b")
    pictures = [folder / "plots" / f"{name}.png" for name in "ab"]
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


@pytest.mark.parametrize(
    ("metric", "values", "away"),
    [
        ("accuracy", (0.5, 0.9), True),
        ("accuracy", (0.5, 0.69), False),
        ("loss", (0.5, 3.0), True),
        ("loss", (0.5, 0.6), False),  # the range of the panel's runs is 2
    ],
)
def test_where_no_run_is_near_its_mean_a_curve_is_its_runs(
    metric: str,
    values: tuple[float, float],
    away: bool,
    folder: Path,
    dynabro: Dynabro,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    column = f"test_{metric}"
    usual = ("method=sgd", "switching=static", "learning_rate=0.1", "seeds=0..1")
    rows = planned("digits-periodic", *SMALL, *AT_GRADIENT, *usual)
    assert len(rows) == 2
    fill(folder / "results.db", rows)
    first = 0.2 if metric == "accuracy" else 2.5
    made.change(folder / "results.db", f"UPDATE evaluations SET {column} = {first}")
    for run, value in zip((1, 2), values, strict=True):
        where = f"run_id = {run} AND round BETWEEN 15 AND 39"
        made.change(
            folder / "results.db", f"UPDATE evaluations SET {column} = {value} WHERE {where}"
        )
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    assert dynabro("plot", "curves", "--metric", metric).code == 0
    numbers = pd.read_csv("plots/curves.csv")
    assert numbers["mean"].notna().all()
    assert "runs" not in numbers
    lines = [line for line in drawn[0].axes[0].lines if len(line.get_xdata()) > 2]
    (mean,) = (line for line in lines if line.get_marker() not in ("None", ""))
    hidden = np.isnan(np.asarray(mean.get_ydata(), dtype=float))
    assert hidden.any() == away
    thin = [line.get_ydata() for line in lines if line is not mean]
    # a piece of a run reaches from the point before to the point behind
    assert np.isfinite(np.array(thin, dtype=float)).any() == away
    assert ("thin: single runs" in drawn[0].get_suptitle()) == away
    if away:
        places = np.flatnonzero(hidden)
        assert hidden[places[0] : places[-1] + 1].all()
        assert not hidden[0]
        assert np.isfinite(thin[0][places]).all()
        assert thin[0][places[0] + 1] == pytest.approx(values[0], abs=0.3)


def test_too_many_panels_are_refused_before_evaluations_are_read(
    folder: Path, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ("method=sgd", "switching=static", "seeds=0")
    rates = [f"learning_rate={0.01 * number:g}" for number in range(1, 14)]
    fill(folder / "results.db", planned("digits-periodic", *SMALL, *AT_GRADIENT, *usual, *rates))
    monkeypatch.setattr(Results, "_rows", lambda *_: pytest.fail("evaluations are read"))
    outcome = dynabro("plot", "curves", "--facet", "learning_rate")
    assert (outcome.code, "has 13 values, and 12 panels can be read" in outcome.err) == (2, True)


def test_a_curve_of_two_points(folder: Path, dynabro: Dynabro) -> None:
    for seed in (0, 1):
        spec = {"task": "digits", "model": "logistic", "method": "sgd", "budget": 5, "seed": seed}
        dynabro_cli.run({**spec, "eval_every": 5}, quiet=True)
    assert dynabro("plot", "curves").code == 0
    assert len(pd.read_csv("plots/curves.csv")) == 2
