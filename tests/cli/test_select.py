"""``dynabro select``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.experiment.grid.plan import plan
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.recorder import Recorder
from dynabro_cli.simulation.setup import simulate_run
from tests.cli.conftest import Dynabro
from tests.cli.test_app import example
from tests.runs.store.made import change, read

GRID = """
name: tiny
base: {task: digits, model: logistic, budget: 4, eval_every: 2, workers: 5, byzantine: 2, validation: 0.2}
grid:
  method: [sgd, momentum]
  learning_rate: [0.5, 0.001]
  attack: [sf, none]
seeds: 0..1
"""  # noqa: E501


@pytest.fixture
def grid(folder: Path) -> str:
    (folder / "tiny.yaml").write_text(GRID)
    return "tiny.yaml"


def make_runs(name: str, *settings: str) -> None:
    """Make the runs of a sweep here, without the processes of ``dynabro sweep``."""
    recorder = Recorder(open_for_writing("results.db"))
    for run in plan(load_sweep(name, settings)).runs:
        for event in simulate_run(run, device="cpu"):
            recorder.record(event)


def finals(database: Path) -> dict[tuple[Any, ...], float]:
    """Mean over seeds of the validation accuracy at the end, by method, learning rate and
    attack.
    """
    sql = """
        SELECT method, learning_rate, attack, AVG(validation_accuracy), COUNT(*) FROM runs JOIN evaluations ON run_id = id
        WHERE evaluations.budget = 4 GROUP BY method, learning_rate, attack
    """  # noqa: E501
    rows = read(database, sql)
    assert {row[4] for row in rows} == {2}
    return {tuple(row[:3]): row[3] for row in rows}


@pytest.mark.thorough
def test_a_sweep_is_chosen_from_and_what_is_chosen_is_trained(
    dynabro: Dynabro, folder: Path, grid: str
) -> None:
    make_runs(grid)
    outcome = dynabro(
        "select",
        grid,
        "--over",
        "learning_rate",
        "--worst",
        "attack",
        "--yaml",
        "chosen.yaml",
        "--json",
    )
    assert outcome.code == 0
    written, *warnings = outcome.problems
    assert (
        written
        == "the chosen runs are written to chosen.yaml. Try: dynabro sweep chosen.yaml, which "
        "trains them"
    )
    assert len(warnings) == 2
    assert all("of its grid. Try: a wider grid" in line for line in warnings)
    told = json.loads(outcome.out)
    means = finals(folder / "results.db")
    for choice in told:
        method = choice["configuration"]["method"]
        worst = {
            rate: min(means[method, rate, attack] for attack in ("sf", "none"))
            for rate in (0.5, 0.001)
        }
        assert choice["candidates"][0]["validation_accuracy"] == pytest.approx(max(worst.values()))
        for candidate in choice["candidates"]:
            rate = candidate["values"]["learning_rate"]
            assert candidate["validation_accuracy"] == pytest.approx(worst[rate])
            assert means[method, rate, candidate["worst"]["attack"]] == pytest.approx(worst[rate])
            assert (candidate["seeds"], candidate["diverged"]) == (2, 0)
    assert [choice["configuration"]["method"] for choice in told] == ["sgd", "momentum"]

    (folder / "grid.yaml").write_text(GRID)
    assert dynabro(*example(dynabro, ["select"])).code == 0
    assert (folder / "chosen.yaml").read_text().startswith("name: ")

    title, _, *lines = dynabro("select", grid).out.splitlines()
    assert title.split()[:4] == ["method", "learning_rate", "worst", "attack"]
    assert [line.split()[:2] for line in lines] == [
        [
            choice["configuration"]["method"],
            f"{choice['candidates'][0]['values']['learning_rate']:g}",
        ]
        for choice in told
    ]
    printed = dynabro("select", grid, "--yaml", "-")
    assert printed.out == (folder / "chosen.yaml").read_text()
    ahead = json.loads(dynabro("sweep", "chosen.yaml", "--dry-run", "--json").out)
    assert (ahead["planned"], ahead["stored"], ahead["to_do"]) == (8, 0, 8)
    held = json.loads(
        dynabro("sweep", "chosen.yaml", "--set", "validation=0.2", "--dry-run", "--json").out
    )
    assert (held["planned"], held["stored"]) == (8, 8)


def test_nothing_is_chosen_by_the_test_set(dynabro: Dynabro, folder: Path, grid: str) -> None:
    outcome = dynabro("select", grid, "--set", "validation=0", "--set", "seeds=0")
    assert (outcome.code, outcome.out) == (2, "")
    more = "tiny.yaml --set validation=0 --set seeds=0 --set validation=0.1"
    (line,) = outcome.problems
    assert line.startswith(
        "validation is 0 in 8 of 8 runs, and the test set is not for choosing. Try: "
    )
    assert line.endswith(f"Try: dynabro sweep {more}, then dynabro select {more}")


@pytest.mark.thorough
def test_test_accuracy_has_no_influence(dynabro: Dynabro, folder: Path, grid: str) -> None:
    make_runs(grid, "seeds=0")
    before = dynabro("select", grid, "--set", "seeds=0", "--json").out
    change(folder / "results.db", "UPDATE evaluations SET test_accuracy = 1 - test_accuracy")
    change(folder / "results.db", "UPDATE runs SET final_accuracy = 1 - final_accuracy")
    change(
        folder / "results.db", "UPDATE evaluations SET validation_accuracy = 0.99 WHERE budget < 4"
    )
    assert dynabro("select", grid, "--set", "seeds=0", "--json").out == before


def test_missing_runs(dynabro: Dynabro, folder: Path, grid: str) -> None:
    outcome = dynabro("select", grid)
    assert (outcome.code, outcome.out) == (66, "")
    (line,) = outcome.problems
    assert line.startswith(
        "16 of 16 runs have no result in results.db, first digits, sgd, cwtm, sf, "
        "periodic:K=10, seed 0. "
    )
    assert line.endswith("Try: dynabro sweep tiny.yaml, which makes them")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("--over", "learning_rat"),
            "over=learning_rat is not legal (did you mean 'learning_rate'?)",
        ),
        (("--worst", "atack"), "worst=atack is not a field (did you mean 'attack'?)"),
        (("--yaml", "-", "--json"), "--json and --yaml - both print on standard output"),
    ],
)
def test_nonsense(arguments: tuple[str, ...], problem: str, dynabro: Dynabro, grid: str) -> None:
    outcome = dynabro("select", grid, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.problems
    assert line.startswith(problem)


def test_an_objective_has_no_accuracy(dynabro: Dynabro, folder: Path) -> None:
    text = "name: q\nbase: {task: quadratic}\ngrid: {learning_rate: [0.1, 0.2]}\n"
    (folder / "q.yaml").write_text(text)
    outcome = dynabro("select", "q.yaml")
    assert (outcome.code, outcome.problems) == (
        2,
        ["task 'quadratic' has no accuracy to choose by; select is for tasks with a model"],
    )
