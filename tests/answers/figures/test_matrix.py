"""The plot ``matrix``, and what plots of stored sweeps choose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.container import BarContainer

from dynabro_cli.answers.analysis.columns import method_label
from dynabro_cli.answers.analysis.paired_tests import holm, paired, student
from dynabro_cli.answers.analysis.ranking import TIED
from dynabro_cli.answers.figures._style import KNOWN, LINES, looks
from tests.answers.figures.grids import AT_GRADIENT, SMALL, fill, planned
from tests.answers.figures.test_figures import read
from tests.cli.conftest import Dynabro
from tests.runs.store import made


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two chains under two attacks, three seeds, of a stored sweep."""
    path = tmp_path_factory.mktemp("rules") / "rules.db"
    rows = {}
    for chain in ("none", "nnm"):
        for attack in ("alie", "ipm"):
            settings = (
                "method=dynabro",
                "learning_rate=0.05",
                "switching=static",
                f"pre_aggregators={chain}",
                f"attack={attack}",
                "seeds=0..2",
            )
            rows |= {
                row["run_key"]: row
                for row in planned("digits-periodic", *SMALL, "attack_entry=gradient", *settings)
            }
    fill(path, list(rows.values()))
    made.change(path, "UPDATE runs SET sweep = 'mine'")
    return path


@pytest.mark.thorough
def test_the_numbers_of_a_matrix(rules: Path, dynabro: Dynabro) -> None:
    outcome = dynabro("plot", "matrix", "mine", "--db", str(rules), "--format", "png,tex,html")
    assert (outcome.code, outcome.err) == (0, "")
    drawn = pd.read_csv("plots/matrix-mine.csv").set_index(["row", "column"])
    stored = read(rules, "SELECT * FROM runs ORDER BY seed")
    chains = {"cwtm": "none", "nnm+cwtm": "nnm"}
    values = {
        (row, attack): stored[(stored["pre_aggregators"] == chain) & (stored["attack"] == attack)][
            "final_accuracy"
        ]
        for row, chain in chains.items()
        for attack in ("alie", "ipm")
    }
    assert set(drawn.index) == set(values)
    for place, own in values.items():
        ends = student(list(own))
        assert drawn.loc[place, "mean"] == pytest.approx(own.mean(), rel=1e-9)
        assert drawn.loc[place, "half"] == pytest.approx((ends.high - ends.low) / 2, rel=1e-9)
        assert drawn.loc[place, "worst"] == pytest.approx(
            min(values[place[0], name].mean() for name in ("alie", "ipm"))
        )
    ps = [
        paired(list(values["cwtm", name].to_numpy() - values["nnm+cwtm", name].to_numpy())).p_t
        for name in ("alie", "ipm")
    ]
    for name, p in zip(("alie", "ipm"), holm(ps), strict=True):
        best, other = sorted(chains, key=lambda row: -values[row, name].mean())
        assert (drawn.loc[(best, name), "best"], drawn.loc[(other, name), "best"]) == (True, False)
        assert drawn.loc[(other, name), "tied"] == (p > 0.05)
        assert not drawn.loc[(best, name), "tied"]
    assert Path("plots/matrix-mine.tex").read_text().count("\\textbf") == 2
    assert Path("plots/matrix-mine.html").read_text().count("<b>") == 2


@pytest.mark.thorough
def test_a_clear_lead_is_no_tie(rules: Path, dynabro: Dynabro, tmp_path: Path) -> None:
    path = tmp_path / "clear.db"
    path.write_bytes(rules.read_bytes())
    made.change(
        path, "UPDATE runs SET final_accuracy = 0.5 + 0.001 * seed WHERE pre_aggregators = 'none'"
    )
    made.change(
        path, "UPDATE runs SET final_accuracy = 0.9 - 0.001 * seed WHERE pre_aggregators = 'nnm'"
    )
    assert dynabro("plot", "matrix", "--db", str(path)).code == 0
    drawn = pd.read_csv("plots/matrix.csv")
    assert not drawn["tied"].any()
    assert set(drawn[drawn["best"]]["row"]) == {"nnm+cwtm"}
    assert set(drawn[drawn["row"] == "nnm+cwtm"]["mean_rank"]) == {1}
    told = dynabro("compare", "--all", "rule", "--db", str(path))
    assert (
        "nnm+cwtm has the best worst case, 0.899 under alie; cwtm follows with 0.501 under alie"
        in told.err
    )


def test_a_sweep_is_drawn_by_its_grid(rules: Path, dynabro: Dynabro) -> None:
    """Attacks are along the axis, and rules have the colour; without a line between words."""
    assert dynabro("plot", "mine", "--db", str(rules)).code == 0
    drawn = pd.read_csv("plots/mine.csv")
    assert set(drawn["attack"]) == {"alie", "ipm"}
    assert set(drawn["series"]) == {"cwtm", "nnm+cwtm"}
    assert set(drawn["n"]) == {3}


@pytest.mark.thorough
def test_a_rate_of_each_method_is_no_field_of_the_grid(folder: Path, dynabro: Dynabro) -> None:
    """The rates of the methods differ; the axis has what the grid varies, and the notes have the
    rates.
    """
    rows = {}
    for attack in ("alie", "ipm"):
        settings = ("attack_entry=gradient", f"attack={attack}", "switching=static")
        rows |= {row["run_key"]: row for row in planned("digits-periodic", *SMALL, *settings)}
    fill(
        folder / "results.db", [row for row in rows.values() if row["method"] in ("sgd", "dynabro")]
    )
    made.change(folder / "results.db", "UPDATE runs SET sweep = 'mine'")
    rates = {row["method"]: row["learning_rate"] for row in rows.values()}
    assert rates["sgd"] != rates["dynabro"]
    assert dynabro("plot", "mine").code == 0
    drawn = pd.read_csv("plots/mine.csv")
    assert set(drawn["attack"]) == {"alie", "ipm"}
    assert set(drawn["series"]) == {"SGD", "DynaBRO"}
    assert (
        "learning rates differ: 0.01 for SGD; 0.05 for DynaBRO"
        in dynabro("compare", "--all", "method").err
    )


@pytest.mark.thorough
def test_a_parameter_is_an_axis(folder: Path, dynabro: Dynabro) -> None:
    rows = [
        row
        for beta in ("0.5", "0.9")
        for row in planned(
            "digits-periodic",
            *SMALL,
            *AT_GRADIENT,
            f"method=momentum:beta={beta}",
            "learning_rate=0.01",
        )
    ]
    fill(folder / "results.db", [row for row in rows if row["switching"] == "static"])
    outcome = dynabro("plot", "final", "--x", "method.beta")
    assert (outcome.code, outcome.err) == (0, "")
    drawn = pd.read_csv("plots/final.csv")
    assert list(drawn["method.beta"]) == [0.5, 0.9]
    assert drawn["series"].nunique() == 1
    problem = dynabro("plot", "final", "--x", "method.gamma")
    assert problem.code == 2
    assert "method.gamma: no run here has this parameter" in problem.err


@pytest.mark.thorough
def test_names_colours_and_order(
    rules: Path, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        "dynabro_cli.answers.figures._make._picture", lambda one, *_: drawn.append(one) or b"x"
    )
    words = ("--label", "nnm+cwtm=Ours", "--colour", "nnm+cwtm=red", "--order", "ipm")
    words += ("--title", "My title")
    assert dynabro("plot", "mine", "--db", str(rules), *words).code == 0
    figure = drawn[0].figure
    assert figure.get_suptitle().splitlines()[0] == "My title"
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"cwtm", "Ours"}
    assert figure.legends[0].get_title().get_text() == "rule"
    (panel,) = (axes for axes in figure.axes if axes.has_data())
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["ipm", "alie"]
    assert "red" in {line.get_color() for line in panel.lines}
    bars = [each for each in panel.containers if isinstance(each, BarContainer)]
    assert {tuple(bar.get_facecolor()[:3]) for bar in bars[1].patches} == {(1, 0, 0)}
    for option, text in (("label", "nmm=Ours"), ("colour", "nmm=red"), ("order", "nmm")):
        problem = dynabro("plot", "mine", "--db", str(rules), f"--{option}", text)
        assert (problem.code, problem.problems[0].partition(". Try")[0]) == (
            2,
            f"{option}=nmm: the picture has no such value",
        )
    assert (
        "colour=rot: not a colour"
        in dynabro("plot", "mine", "--db", str(rules), "--colour", "nnm+cwtm=rot").err
    )


@pytest.mark.thorough
def test_the_files_of_a_plot_have_its_name_or_another(rules: Path, dynabro: Dynabro) -> None:
    curves = ("plot", "curves", "--db", str(rules))
    assert dynabro(*curves).out == "plots/curves.png  (12 runs)\n"
    assert dynabro(*curves, "--hue", "attack").out == "plots/curves.png  (12 runs)\n"
    assert dynabro(*curves, "--name", "mine").out == "plots/mine.png  (12 runs)\n"
    assert dynabro(*curves, "--name", "../mine").code == 2


@pytest.mark.thorough
def test_sweeps_side_by_side(rules: Path, dynabro: Dynabro, tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    path.write_bytes(rules.read_bytes())
    made.change(path, "UPDATE runs SET sweep = 'other' WHERE pre_aggregators = 'nnm'")
    assert dynabro("plot", "mine", "other", "--db", str(path)).code == 0
    assert set(pd.read_csv("plots/mine-other.csv")["sweep"]) == {"mine", "other"}
    found = json.loads(
        dynabro(
            "compare",
            "--all",
            "sweep",
            "--sweep",
            "mine",
            "--sweep",
            "other",
            "--db",
            str(path),
            "--json",
        ).out
    )
    assert {cell["row"] for cell in found["cells"]} == {"mine", "other"}
    assert {pair["n"] for pair in found["pairs"]} == {3}
    problem = dynabro("plot", "mine", "another", "--db", str(path))
    assert (problem.code, problem.out) == (66, "")


@pytest.mark.thorough
def test_a_heatmap_does_not_mix_budgets(folder: Path, dynabro: Dynabro) -> None:
    """No cell is the worst of two problems; with a panel each it is drawn."""
    settings = ("eval_every=10", "seeds=0..1", *AT_GRADIENT)
    rows = [
        row
        for budget in (40, 80)
        for row in planned("digits-periodic", *settings, f"budget={budget}")
    ]
    fill(folder / "results.db", rows)
    problem = dynabro("plot", "heatmap")
    assert problem.code == 2
    assert problem.problems == [
        (
            "the runs differ in budget (40, 80): no worst case is one of both. Try: --facet "
            "budget, or --where with one value"
        )
    ]
    assert dynabro("plot", "heatmap", "--facet", "budget", "--hue", "method").code == 0


def test_a_method_has_one_colour() -> None:
    """In any company: methods have fixed places, and the others a place that follows from their
    name.
    """
    alone = looks({"dynabro": "DynaBRO"})["dynabro"]
    assert looks({"a": "cwtm", "dynabro": "DynaBRO", "sgd": "SGD"})["dynabro"] == alone
    assert (
        len({line.color for line in looks({name: name for name in "abcdefghijkl"}).values()}) == 12
    )
    named = [
        method_label({"name": name})
        for name in ("sgd", "mu2-sgd", "demoa", "nsgdm", "marina-pp", "local-steps")
    ]
    assert set(named) <= set(KNOWN)
    places = set(KNOWN.values())  # some methods have two labels
    assert len({LINES[place].color for place in places}) == len(places)
    first, second = looks({name: name for name in ("DynaBRO, cwtm", "DynaBRO, gm")}).values()
    assert first.color == second.color == alone.color
    assert first.marker != second.marker


def test_ties_are_marked_in_the_width_of_a_column(
    folder: Path, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight attacks beside each other leave room for a mean and a mark."""
    attacks = ("alie", "foe", "gaussian", "ipm", "min-max", "min-sum", "mimic", "sf")
    fixed = ("method=dynabro", "learning_rate=0.05", "switching=static", "seeds=0..2", *SMALL)
    rows = {
        row["run_key"]: row
        for chain in ("none", "nnm")
        for attack in attacks
        for row in planned(
            "digits-periodic", *fixed, f"pre_aggregators={chain}", f"attack={attack}", *AT_GRADIENT
        )
    }
    fill(folder / "results.db", list(rows.values()))
    drawn: list[Any] = []
    monkeypatch.setattr(
        "dynabro_cli.answers.figures._make._picture", lambda of, *_: drawn.append(of) or b"x"
    )
    assert dynabro("plot", "matrix", "--width", "column").code == 0
    texts = [text.get_text() for panel in drawn[0].figure.axes for text in panel.texts]
    assert not any("\N{PLUS-MINUS SIGN}" in text for text in texts)
    assert sum(text.endswith(TIED) for text in texts) == int(drawn[0].numbers["tied"].sum()) > 0
    title = drawn[0].figure.get_suptitle().replace("\n", " ")
    assert f"{TIED}: not separated" in title


@pytest.fixture
def two_problems(folder: Path) -> str:
    """Two methods on digits under two attacks, and one of them on MNIST under a third attack."""
    common = (*SMALL, "attack_entry=gradient", "learning_rate=0.01", "switching=static")
    rows = [
        row
        for attack in ("alie", "ipm")
        for row in planned("digits-periodic", *common, f"attack={attack}", "seeds=0..2")
        if row["method"] in ("sgd", "momentum")
    ]
    other = ("budget=80", *common[1:], "method=momentum", "attack=foe", "seeds=0..2")
    rows += planned("mnist-sf-cwtm", *other)
    fill(folder / "results.db", list({row["run_key"]: row for row in rows}.values()))
    return str(folder / "results.db")


def test_a_matrix_is_of_one_problem_also_if_the_task_follows_from_the_attack(
    two_problems: str, dynabro: Dynabro
) -> None:
    assert dynabro("plot", "matrix").code == 0
    cells = pd.read_csv("plots/matrix.csv")
    assert {(title, *sorted(set(part["column"]))) for title, part in cells.groupby("panel")} == {
        ("digits", "alie", "ipm"),
        ("MNIST", "foe"),
    }
    outcome = dynabro("compare", "--all", "method")
    assert "digits: " in outcome.err
    outcome = dynabro("plot", "heatmap", "--x", "attack", "--hue", "method", "--facet", "switching")
    assert outcome.code == 2
    assert "the runs differ in task" in outcome.err
    assert (
        dynabro("plot", "final", "--x", "attack", "--hue", "method", "--facet", "clock").code == 0
    )
    series = pd.read_csv("plots/final.csv").groupby("attack")["series"].agg(set)
    assert all("MNIST" in name for name in series["foe"])
    assert not any("MNIST" in name for name in series["alie"])
    # what is asked for is not split
    assert dynabro("plot", "matrix", "--x", "task").code == 0


def test_rows_with_other_columns_have_no_common_worst_case(folder: Path, dynabro: Dynabro) -> None:
    common = (*SMALL, "attack_entry=gradient", "learning_rate=0.01", "switching=static")
    rows = [
        row
        for attack, methods in (("alie", ("sgd", "momentum")), ("ipm", ("momentum",)))
        for row in planned("digits-periodic", *common, f"attack={attack}", "seeds=0..2")
        if row["method"] in methods
    ]
    fill(folder / "results.db", rows)
    outcome = dynabro("compare", "--all", "method")
    assert "no best worst case: SGD has no run under ipm." in outcome.err
    assert "has the best worst case" not in outcome.err
    more = [
        row
        for attack in ("alie", "ipm")
        for row in planned("digits-periodic", *common, f"attack={attack}", "seeds=0..2")
        if row["method"] == "momentum:beta=0.99"
    ]
    fill(folder / "results.db", more)
    err = dynabro("compare", "--all", "method").err
    assert (
        "of 2 of 3 rows (SGD has no run under ipm), no test separates the best worst cases" in err
    )


def test_a_test_of_the_same_runs_counts_once(folder: Path, dynabro: Dynabro) -> None:
    """SGD and DynaBRO are in the matrix of each reading of the attack on momentum."""
    rows = []
    for entry in ("gradient", "state"):
        rows += planned(
            "digits-periodic",
            *SMALL,
            "attack=alie",
            f"attack_entry={entry}",
            "switching=static",
            "seeds=0..2",
        )
    rows = [
        row
        for row in rows
        if row["method"].startswith("momentum") or row["attack_entry"] == "gradient"
    ]
    fill(folder / "results.db", rows)
    cells = json.loads(dynabro("compare", "--all", "method", "--json").out)
    pairs = [pair for pair in cells["pairs"] if {pair["a"], pair["b"]} == {"SGD", "DynaBRO"}]
    assert len(pairs) == 2
    assert pairs[0]["p"] == pairs[1]["p"]
    unique = {(pair["p"], pair["difference"]) for pair in cells["pairs"]}
    assert len(unique) < len(cells["pairs"])
    ps = [p for p, _ in unique]
    expected = dict(zip(ps, holm(ps), strict=True))
    assert all(pair["holm"] == pytest.approx(expected[pair["p"]]) for pair in cells["pairs"])
    out = dynabro("report", "--out", "page.html").err
    page = Path("page.html").read_text()
    assert f"{len(rows)} runs written" in out
    assert f"{len(rows)} runs with a result" in page


@pytest.mark.parametrize(("share", "warned"), [("0.1", True), ("0", False)])
def test_test_results_are_not_for_choosing(
    share: str, warned: bool, folder: Path, dynabro: Dynabro
) -> None:
    """A sweep that holds samples out is made for ``dynabro select``."""
    settings = (*SMALL, f"validation={share}", "method=dynabro", "switching=static", "seeds=0..2")
    rows = {
        row["run_key"]: row
        for rate in ("0.05", "0.01")
        for row in planned(
            "digits-periodic", *settings, "attack_entry=gradient", f"learning_rate={rate}"
        )
    }
    fill(folder / "results.db", list(rows.values()))
    line = "these are test results, which must not choose a learning rate. Try: dynabro select\n"
    assert (line in dynabro("compare", "--all", "learning_rate").err) is warned
