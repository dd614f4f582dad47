"""``dynabro compare``."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.store.statistics import paired
from tests.cli.conftest import Dynabro
from tests.figures.grids import SMALL, fill, planned
from tests.store.made import change, read

ONE, OTHER = "momentum", "momentum:beta=0.99"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of ``digits-periodic``."""
    path = tmp_path_factory.mktemp("compared") / "results.db"
    fill(path, planned("digits-periodic", "seeds=0..2", *SMALL))
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
    assert [row["cell"]["switching"] for row in found] == [*(f"periodic:K={K}" for K in (5, 10, 20, 100)), "static"]
    for row in found:
        a, b = (finals(grid, method, row["cell"]["switching"]) for method in (ONE, OTHER))
        expected = paired([x - y for x, y in zip(a, b, strict=True)])
        assert row["seeds"] == [0, 1, 2]
        assert (row["n"], row["difference"], row["p_t"]) == (3, pytest.approx(expected.mean), pytest.approx(expected.p_t))
        assert (row["t_low"], row["t_high"]) == pytest.approx(tuple(expected.student))
        assert row["holm_t"] == pytest.approx(min(1, 5 * row["p_t"])) or row["holm_t"] > row["p_t"]


def test_the_other_way_round(dynabro: Dynabro, grid: Path) -> None:
    one, other = rows(dynabro, ONE, OTHER), rows(dynabro, OTHER, ONE)
    assert [row["difference"] for row in one] == pytest.approx([-row["difference"] for row in other])
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
    assert "Wilcoxon's p is at least 0.25" in outcome.err
    tex = dynabro("compare", ONE, OTHER, "--format", "tex").out
    assert tex.startswith("\\begin{tabular}")
    assert tex.count("\\\\") == 6
    assert "95\\%" in tex
    (header_row, *body) = csv.reader(io.StringIO(dynabro("compare", ONE, OTHER, "--format", "csv").out))
    assert header_row[:3] == ["switching", "seeds", "n"]
    assert len(body) == 5


def test_a_seed_without_a_partner_is_left_out(dynabro: Dynabro, grid: Path) -> None:
    change(grid, f"DELETE FROM runs WHERE method = '{ONE}' AND seed = 2 AND switching = 'static'")
    found = rows(dynabro, ONE, OTHER)
    assert [row["n"] for row in found] == [3, 3, 3, 3, 2]
    assert "1 run without a partner left out" in dynabro("compare", ONE, OTHER).err


def test_any_field_is_compared(dynabro: Dynabro, grid: Path) -> None:
    """Other identities are told of."""
    outcome = dynabro("compare", "switching=periodic:K=5", "switching=static", "--where", "method = 'sgd'")
    assert outcome.code == 0
    assert "do not have the same Byzantine workers" in outcome.err
    assert "do not have the same" not in dynabro("compare", ONE, OTHER).err


def test_what_else_differs_is_named(dynabro: Dynabro, grid: Path) -> None:
    change(grid, "UPDATE runs SET learning_rate = 0.5 WHERE method = 'sgd'")
    outcome = dynabro("compare", "sgd", ONE)
    assert outcome.code == 66
    assert "learning_rate: A 0.5, B" in outcome.err
    (rate,) = read(grid, f"SELECT DISTINCT learning_rate FROM runs WHERE method = '{ONE}'")[0]
    assert rows(dynabro, "sgd learning_rate=0.5", f"{ONE} learning_rate={rate}")


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
        (("sgd", "momentum", "--metric", "loess"), 2, "metric=loess: not legal (did you mean 'loss'?)"),
        (("sgd", "momentum", "--format", "html"), 2, "format=html: not a form of output"),
        (("workers=17", "sgd"), 2, "would have one partner"),
    ],
)
def test_errors(arguments: tuple[str, ...], code: int, message: str, dynabro: Dynabro, grid: Path) -> None:
    outcome = dynabro("compare", *arguments)
    assert message in outcome.err
    assert outcome.code == code
    assert outcome.out == ""


def test_no_seed_in_common(dynabro: Dynabro, grid: Path) -> None:
    change(grid, f"UPDATE runs SET seed = seed + 10 WHERE method = '{ONE}'")
    assert "no seed in common" in dynabro("compare", ONE, OTHER).err
