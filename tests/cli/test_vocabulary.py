"""Words that a user types by guess: short names, chains with their rule, sweeps by name; and the
words of errors.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dynabro_cli import RunSpec
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.grid.plan import plan
from dynabro_cli.experiment.grid.sweep_file import parse_sweep
from dynabro_cli.experiment.grid.sweep_lookup import set_fields
from tests.cli.conftest import Dynabro
from tests.runs.store.made import change, read

SWEEP = """
name: a
base: {lr: 0.1, task: digits, budget: 10}
grid:
  aggregator: [cwtm, "nnm+cwtm"]
exclude:
  - {aggregator: nnm+cwtm, attack: alie}
"""


def rules(*settings: str) -> list[tuple[str, str | None, float | None]]:
    runs = plan(set_fields(parse_sweep(SWEEP, "a.yaml"), settings)).runs
    return [(run.spec.pre_aggregators, run.spec.aggregator, run.spec.learning_rate) for run in runs]


def test_a_field_has_a_short_name_in_python_and_in_sweeps() -> None:
    long = RunSpec(learning_rate=0.1, pre_aggregators="nnm", aggregator="cwtm")
    assert (
        RunSpec(lr=0.1, aggregator="nnm+cwtm")
        == RunSpec(lr=0.1, pre="nnm", aggregator="cwtm")
        == long
    )
    assert RunSpec.from_text({"lr": "1e+2", "aggregator": "cge:f=1"}).learning_rate == 100
    assert rules() == [("none", "cwtm", 0.1), ("nnm", "cwtm", 0.1)]
    assert rules("lr=0.2", "aggregator=bucketing:s=1+nnm+gm") == [("bucketing:s=1+nnm", "gm", 0.2)]
    assert rules("aggregator=gm", "aggregator=nnm+gm", "pre=clipping:c=1")[0][0] == "clipping:c=1"
    # exclude, too, knows the chain with its rule
    assert rules("attack=alie") == [("none", "cwtm", 0.1)]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"lr": 1, "learning_rate": 2}, "learning_rate is given twice"),
        (
            {"pre": "nnm", "aggregator": "bucketing:s=2+cwtm"},
            "it has pre-aggregators, and so has pre_aggregators=nnm",
        ),
        (
            {"agregator": "cwtm"},
            "unknown field 'agregator' (did you mean 'aggregator'?); legal: task, ",
        ),
    ],
)
def test_two_names_of_one_field(values: dict[str, object], problem: str) -> None:
    with pytest.raises(
        SpecError, match=problem.replace("(", r"\(").replace("?", r"\?").replace(")", r"\)")
    ):
        RunSpec(**values)  # type: ignore[arg-type]


def test_run_takes_fields_as_a_sweep_does(dynabro: Dynabro, folder: Path) -> None:
    settings = ("budget=10", "lr=0.5", "aggregator=nnm+cwmed")
    words = [
        "--task",
        "quadratic",
        "--method",
        "sgd",
        "--attack",
        "none",
        "-q",
        *(f"--set={one}" for one in settings),
    ]
    assert dynabro("run", *words).code == 0
    assert read(
        folder / "results.db", "SELECT learning_rate, pre_aggregators, aggregator FROM runs"
    ) == [(0.5, "nnm", "cwmed")]


@pytest.mark.thorough
def test_a_sweep_is_named_by_an_option_everywhere(dynabro: Dynabro, results: Path) -> None:
    change(results, "UPDATE runs SET sweep = 'survive' WHERE method = 'sgd' AND task = 'digits'")
    for words in (
        "runs --csv",
        "plot curves --json",
        "plot",
        "export curves --csv -",
        "export final --csv -",
        "report",
        "compare --all seed",
    ):
        outcome = dynabro(*words.split(), "--sweep", "survie")
        assert (outcome.code, outcome.problems) == (
            66,
            ["no run of the sweep survie is stored (did you mean 'survive'?). Try: survive"],
        ), words
    assert len(dynabro("runs", "--csv", "--sweep", "survive").out.splitlines()) == 3
    (final,) = dynabro("export", "final", "--csv", "-", "--sweep", "survive").out.splitlines()[1:]
    assert ",2," in final
    assert dynabro("plot", "--sweep", "survive").out == "plots/survive.png  (2 runs)\n"
    assert (
        dynabro("plot", "survie")
        .problems[0]
        .startswith("unknown figure or sweep 'survie' (did you mean 'survive'?)")
    )


def test_rules_are_compared_by_their_names(dynabro: Dynabro, results: Path) -> None:
    lines = dynabro("compare", "cwtm", "nnm+cwtm").problems
    assert lines[0].startswith("B: no run with a result has these values")
    assert dynabro("compare", "cwtm", "nosuch").problems[0].startswith("unknown method 'nosuch'")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            ("runs", "--where", "attack=alie"),
            "SQL: no such column: alie. Try: quotes around a text, 'alie', or a column: id, ",
        ),
        (
            ("runs", "--where", "attack = fang-krum"),
            "Try: quotes around a text, 'fang-krum', or a column: id, ",
        ),
        (
            ("runs", "--where", "lr < 0.1"),
            "SQL: no such column: lr. Try: learning_rate, or a column: id, ",
        ),
        (
            ("query", "SELECT levl FROM rounds"),
            "SQL: no such column: levl. Try: level, or a column: run_id, round, ",
        ),
        (
            ("query", "SELECT * FROM run"),
            "SQL: no such table: run. Try: SELECT ... FROM one of runs, evaluations, ",
        ),
        (("run", "--set", "lr"), "--set lr: it must be FIELD=VALUE. Try: --set lr=0.1"),
        (
            ("run", "--lr", "1", "--set", "learning_rate=2"),
            "--set learning_rate=2: the field is given twice",
        ),
        (("plot",), "plot what? Try: dynabro plot SWEEP, "),
        (("runs", "--swep", "x"), "Try: dynabro runs --help"),
        (
            ("compare", "--all", "atack"),
            "all=atack is not a column to plot by (did you mean 'attack'?)",
        ),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(
    words: tuple[str, ...], answer: str, dynabro: Dynabro, results: Path
) -> None:
    outcome = dynabro(*words)
    assert outcome.code == 2
    assert answer in outcome.problems[0]


def test_a_component_is_shown_by_its_name(dynabro: Dynabro) -> None:
    assert dynabro("show", "alie").out == dynabro("show", "attacks/alie").out
