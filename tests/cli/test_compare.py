"""``dynabro compare``."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.answers.analysis.paired_tests import paired
from tests.answers.figures.grids import AT_GRADIENT, SMALL, fill, planned
from tests.cli.conftest import Dynabro
from tests.own import fresh, write_rule
from tests.runs.store.made import change, read

ONE, OTHER = "momentum", "momentum:beta=0.99"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of ``digits-periodic``."""
    path = tmp_path_factory.mktemp("compared") / "results.db"
    fill(path, planned("digits-periodic", "seeds=0..2", *SMALL, *AT_GRADIENT))
    return path


@pytest.fixture
def grid(folder: Path, made: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copy(made, folder / "results.db"))


def rows(dynabro: Dynabro, *arguments: str) -> list[dict[str, Any]]:
    outcome = dynabro("compare", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    found: list[dict[str, Any]] = json.loads(outcome.out)
    return found


def finals(path: Path, method: str, switching: str) -> list[float]:
    sql = "SELECT final_accuracy FROM runs WHERE method = ? AND switching = ? ORDER BY seed"
    return [row[0] for row in read(path, sql, method, switching)]


def test_pairs_of_equal_seeds(dynabro: Dynabro, grid: Path) -> None:
    found = rows(dynabro, ONE, OTHER)
    assert [row["cell"]["switching"] for row in found] == [
        *(f"periodic:K={K}" for K in (5, 10, 20, 100)),
        "static",
    ]
    for row in found:
        a, b = (finals(grid, method, row["cell"]["switching"]) for method in (ONE, OTHER))
        expected = paired([x - y for x, y in zip(a, b, strict=True)])
        assert row["seeds"] == [0, 1, 2]
        assert (row["n"], row["difference"], row["p_t"]) == (
            3,
            pytest.approx(expected.mean),
            pytest.approx(expected.p_t),
        )
        assert (row["t_low"], row["t_high"]) == pytest.approx(tuple(expected.student))
        assert row["holm_t"] == pytest.approx(min(1, 5 * row["p_t"])) or row["holm_t"] > row["p_t"]


def test_runs_of_other_data_are_told(dynabro: Dynabro, grid: Path) -> None:
    for seed, digest in ((1, "0" * 12), (2, "1" * 12)):
        change(
            grid,
            "UPDATE runs SET code_digests = ? WHERE method = ? AND seed = ?",
            f'{{"data/digits":"{digest}"}}',
            ONE,
            seed,
        )
    warning = (
        "warning: these runs were made with 2 versions of the data of digits, which no "
        "mean or comparison should mix"
    )
    assert warning in dynabro("compare", ONE, OTHER).err.splitlines()
    assert f"dynabro: {warning}" in dynabro("compare", "--all", "method").err.splitlines()
    assert warning not in dynabro("compare", "sgd", OTHER).err


def test_the_other_way_round(dynabro: Dynabro, grid: Path) -> None:
    one, other = rows(dynabro, ONE, OTHER), rows(dynabro, OTHER, ONE)
    assert [row["difference"] for row in one] == pytest.approx(
        [-row["difference"] for row in other]
    )
    assert [row["p_wilcoxon"] for row in one] == [row["p_wilcoxon"] for row in other]


def test_a_clear_lead_is_told(dynabro: Dynabro, grid: Path) -> None:
    change(grid, f"UPDATE runs SET final_accuracy = 0.5 + 0.001 * seed WHERE method = '{OTHER}'")
    change(grid, f"UPDATE runs SET final_accuracy = 0.4 - 0.001 * seed WHERE method = '{ONE}'")
    assert {row["better"] for row in rows(dynabro, ONE, OTHER)} == {"B"}
    assert {row["better"] for row in rows(dynabro, OTHER, ONE)} == {"A"}


def test_forms(dynabro: Dynabro, grid: Path) -> None:
    outcome = dynabro("compare", ONE, OTHER)
    header, _, *lines = outcome.out.splitlines()
    assert header.split("  ")[0] == "switching"
    assert len(lines) == 5
    assert outcome.err.splitlines()[0] == f"A: {ONE}, B: {OTHER}, final accuracy"
    assert "Wilcoxon's p is at least 0.25" in outcome.err
    tex = dynabro("compare", ONE, OTHER, "--format", "tex").out
    assert tex.startswith("\\begin{tabular}")
    assert tex.count("\\\\") == 6
    assert "95\\%" in tex
    (header_row, *body) = csv.reader(
        io.StringIO(dynabro("compare", ONE, OTHER, "--format", "csv").out)
    )
    assert header_row[:3] == ["switching", "seeds", "n"]
    assert len(body) == 5


def test_a_seed_without_a_partner_is_left_out(dynabro: Dynabro, grid: Path) -> None:
    change(grid, f"DELETE FROM runs WHERE method = '{ONE}' AND seed = 2 AND switching = 'static'")
    found = rows(dynabro, ONE, OTHER)
    assert [row["n"] for row in found] == [3, 3, 3, 3, 2]
    assert "1 run without a partner left out" in dynabro("compare", ONE, OTHER).err


def test_any_field_is_compared(dynabro: Dynabro, grid: Path) -> None:
    """Different identities are reported."""
    outcome = dynabro(
        "compare", "switching=periodic:K=5", "switching=static", "--where", "method = 'sgd'"
    )
    assert outcome.code == 0
    assert "do not have the same Byzantine workers" in outcome.err
    assert "do not have the same" not in dynabro("compare", ONE, OTHER).err


def test_what_else_differs_is_named(dynabro: Dynabro, grid: Path) -> None:
    change(grid, "UPDATE runs SET weight_decay = 0.5 WHERE method = 'sgd'")
    outcome = dynabro("compare", "sgd", ONE)
    assert outcome.code == 66
    assert "weight_decay: A 0.5, B" in outcome.err
    (decay,) = read(grid, f"SELECT DISTINCT weight_decay FROM runs WHERE method = '{ONE}'")[0]
    assert rows(dynabro, "sgd weight_decay=0.5", f"{ONE} weight_decay={decay}")


def test_methods_at_rates_of_their_own(dynabro: Dynabro, grid: Path) -> None:
    """They are compared if nothing else differs, and a line has the rates; with two rates a side
    must choose.
    """
    before = rows(dynabro, "sgd", ONE)
    change(grid, "UPDATE runs SET learning_rate = 0.5 WHERE method = 'sgd'")
    outcome = dynabro("compare", "sgd", ONE)
    assert outcome.code == 0
    assert "learning rates differ: A 0.5, B 0.01" in outcome.err
    assert rows(dynabro, "sgd", ONE) == before
    change(grid, "UPDATE runs SET learning_rate = 0.25, seed = 0 WHERE method = 'sgd' AND seed = 1")
    assert "learning_rate=0.5 and learning_rate=0.25" in dynabro("compare", "sgd", ONE).err


def test_all_values_of_a_field(dynabro: Dynabro, grid: Path) -> None:
    """The matrix has the means, and its tests are the paired tests of two sides, corrected for all
    pairs and columns.
    """
    outcome = dynabro("compare", "--all", "method", "--json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert len(found["cells"]) == 4 * 5
    for cell in found["cells"]:
        switching = "static" if cell["column"] == "K=\u221e" else f"periodic:{cell['column']}"
        if cell["row"] == "SGD":
            assert cell["mean"] == pytest.approx(sum(finals(grid, "sgd", switching)) / 3)
    assert len(found["pairs"]) == 6 * 5
    of_two = {
        f"periodic:{pair['column']}": pair
        for pair in found["pairs"]
        if (pair["a"], pair["b"]) == ("SGD", "DynaBRO")
    }
    for row in rows(
        dynabro,
        "sgd learning_rate=0.01",
        "dynabro learning_rate=0.05",
        "--where",
        "switching != 'static'",
    ):
        pair = of_two[row["cell"]["switching"]]
        assert (pair["difference"], pair["p"]) == pytest.approx((row["difference"], row["p_t"]))
        assert pair["holm"] >= row["holm_t"]
    (best,) = (cell for cell in found["cells"] if cell["column"] == "K=5" and cell["best"])
    assert best["mean"] == max(cell["mean"] for cell in found["cells"] if cell["column"] == "K=5")


@pytest.mark.thorough
def test_all_values_on_a_terminal(dynabro: Dynabro, grid: Path) -> None:
    outcome = dynabro("compare", "--all", "method")
    assert max(map(len, outcome.out.splitlines())) <= 120
    assert outcome.out.count("mean rank") == 1
    assert "learning rates differ: 0.01 for SGD" in outcome.err
    assert "best worst case" in outcome.err
    assert dynabro("compare", "--all", "method", "--format", "tex").out.count("\\textbf") == 5
    problem = dynabro("compare", "--all", "aggregator")
    assert (problem.code, problem.problems) == (
        66,
        ["all=aggregator: the runs have one value of it, cwtm. Try: another field, or --where"],
    )
    for words in (
        ("sgd",),
        ("sgd", "dynabro", "--all", "method"),
        ("sgd", "dynabro", "--against", "attack"),
    ):
        assert dynabro("compare", *words).code == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("sdg", "momentum"), 2, "unknown method 'sdg' (did you mean 'sgd'?)"),
        (("seed=1", "seed=2"), 2, "seed=1: not a field to compare by"),
        (("methd=sgd", "sgd"), 2, "methd=sgd: not a field to compare by (did you mean 'method'?)"),
        (("sgd", "method=sgd"), 2, "A and B are the same"),
        (("sgd method=sgd", "momentum"), 2, "method is given twice"),
        (("workers=many", "workers=3"), 2, "workers=many: not legal"),
        (("sgd", "safeguard"), 66, "B: no run with a result has these values"),
        (("sgd", "momentum", "--where", "seed = 99"), 66, "A: no run among the runs of --where"),
        (
            ("sgd", "momentum", "--metric", "loess"),
            2,
            "metric=loess: not legal (did you mean 'loss'?)",
        ),
        (("sgd", "momentum", "--format", "html"), 2, "format=html: not a form of output"),
        (("workers=17", "sgd"), 2, "would have one partner"),
    ],
)
def test_errors(
    arguments: tuple[str, ...], code: int, message: str, dynabro: Dynabro, grid: Path
) -> None:
    outcome = dynabro("compare", *arguments)
    assert message in outcome.err
    assert outcome.code == code
    assert outcome.out == ""


def test_no_seed_in_common(dynabro: Dynabro, grid: Path) -> None:
    change(grid, f"UPDATE runs SET seed = seed + 10 WHERE method = '{ONE}'")
    assert "no seed in common" in dynabro("compare", ONE, OTHER).err


@pytest.mark.thorough
def test_components_of_a_plugin_are_named_as_they_are_stored(
    dynabro: Dynabro, folder: Path
) -> None:
    """The plugin is needed to compute, and not to read."""
    write_rule(folder, "own.py", name="halves")
    (folder / "mine.yaml").write_text(
        "name: mine\nplugins: [own.py]\nbase: {task: quadratic, method: sgd, budget: 10}\n"
        "grid: {aggregator: [halves, cwmed]}\nseeds: 0..1\n"
    )
    with fresh():
        assert dynabro("sweep", "mine.yaml", "--jobs", "0").code == 0
    outcome = dynabro("compare", "halves", "cwmed", "--format", "json")
    assert outcome.code == 0
    assert outcome.err.startswith("A: halves, B: cwmed, final gap\n")
    assert [cell["n"] for cell in json.loads(outcome.out)] == [2]
    assert "--plugin own.py --seed 0" in dynabro("show", "1").out
    assert "--plugin" not in dynabro("show", "2").out
    assert dynabro("compare", "thirds", "cwmed").code == 2
