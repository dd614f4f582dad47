"""The first ten minutes: a demo, a plot of any sweep, and what to do next."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

from dynabro_cli.cli.make import demo
from dynabro_cli.experiment.grid import sweep_lookup
from dynabro_cli.experiment.grid.plan import plan
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep, shipped
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.runs.screen import terminal
from dynabro_cli.runs.screen.terminal import to_type
from tests.cli.conftest import Dynabro
from tests.runs.store.made import change, read

QUICK = "{task: quadratic, method: sgd, attack: 'shift:lambda=1', aggregator: cwmed, budget: 20}"


def as_sweep(results: Path, name: str) -> None:
    """Let the six runs on digits be runs of a sweep."""
    change(results, f"UPDATE runs SET sweep = '{name}' WHERE task = 'digits'")


def test_a_stored_sweep_is_drawn_against_what_varies(dynabro: Dynabro, results: Path) -> None:
    as_sweep(results, "mine")
    outcome = dynabro("plot", "mine")
    assert (outcome.code, outcome.out, outcome.err) == (0, "plots/mine.png  (6 runs)\n", "")
    numbers = pd.read_csv("plots/mine.csv")
    # the only column that varies is x
    assert list(numbers["method"]) == ["sgd", "momentum:beta=0.5", "dynabro"]
    assert set(numbers["n"]) == {2}
    assert len(pd.read_csv("plots/mine.runs.csv")) == 6


def test_options_and_conditions_choose_what_is_drawn(dynabro: Dynabro, results: Path) -> None:
    as_sweep(results, "mine")
    outcome = dynabro("plot", "mine", "--x", "seed", "--where", "method != 'sgd'", "--json")
    assert outcome.code == 0
    numbers = pd.read_csv("plots/mine.csv")
    assert set(numbers["seed"]) == {0, 1}
    assert len(numbers) == 4


def test_a_sweep_of_seeds_only_is_drawn_as_curves(dynabro: Dynabro, results: Path) -> None:
    change(results, "UPDATE runs SET sweep = 'seeds' WHERE method = 'sgd'")
    assert dynabro("plot", "seeds").out == "plots/seeds.png  (2 runs)\n"
    assert "samples" in pd.read_csv("plots/seeds.csv").columns


@pytest.mark.parametrize("name", ["nosuch", "no such", "it's"])
def test_a_sweep_that_is_not_stored_is_an_unknown_figure(
    name: str, dynabro: Dynabro, results: Path
) -> None:
    outcome = dynabro("plot", name)
    assert outcome.code == 2
    assert outcome.problems[0].startswith("unknown figure")


@pytest.mark.thorough
def test_next_steps_are_for_people_only(
    dynabro: Dynabro, results: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal, and each of them works."""
    (folder / "own.yaml").write_text(
        f"name: own\nbase: {QUICK}\ngrid: {{weight_decay: [0, 0.1]}}\n"
    )
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    as_sweep(results, "mine")
    told = dynabro("plot", "mine").err
    assert told == "the plotted numbers: plots/mine.csv; the runs: plots/mine.runs.csv\n"
    assert dynabro("plot", "mine", "--json").err == ""
    told = dynabro(
        "sweep", "own.yaml", "--jobs", "0", "--quiet", "--db", "other.db", "--set", "seeds=1"
    ).err.splitlines()
    assert told == [
        "next: dynabro plot matrix own --db other.db",
        "      dynabro report own --db other.db",
    ]
    stored = (folder / "own.yaml").read_text() + "# --set seeds=1\n"
    assert read(folder / "other.db", "SELECT yaml FROM sweeps") == [(stored,)]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("plot matrix nosuch", "dynabro sweep NAME"),
        ("report nosuch", "dynabro sweep NAME"),
        ("show 99", "dynabro runs"),
        ("compare sgd nsgdm", "dynabro runs"),
        ("plot digits-best", "dynabro sweep digits-best"),
    ],
)
def test_commands_to_type_name_the_database_in_use(
    words: str, command: str, dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results.rename("my runs.db")
    assert f"{command} --db 'my runs.db'" in dynabro(*words.split(), "--db", "my runs.db").err
    monkeypatch.setenv("DYNABRO_DB", "my runs.db")  # the commands to type will read it, too
    assert (
        dynabro(*words.split()).err.endswith(command + "\n")
        or f"{command}, " in dynabro(*words.split()).err
    )


def test_a_database_is_named_at_the_end_of_each_command_and_never_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DYNABRO_DB", raising=False)
    terminal.use("o.db")
    assert to_type("Try: dynabro run or dynabro sweep, which make some") == (
        "Try: dynabro run --db o.db or dynabro sweep --db o.db, which make some"
    )
    quoted = 'next: dynabro plot curves --where "id = 3, x" --x switching:K=5,a=1'
    assert to_type(quoted) == f"{quoted} --db o.db"
    for text in (
        "Try: dynabro run --db x.db",
        "Try: dynabro list sweeps",
        "dynabro 0.1 on every node",
    ):
        assert to_type(text) == text
    terminal.use("results.db")  # as without --db
    assert to_type("Try: dynabro run") == "Try: dynabro run"


def test_the_password_of_a_server_is_not_repeated(dynabro: Dynabro) -> None:
    terminal.use("postgresql+psycopg://me:secret@localhost/x")
    assert to_type("Try: dynabro runs") == "Try: dynabro runs"
    terminal.use("results.db")


def small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demo be short."""
    text = (
        shipped()["demo"]
        .read_text(encoding="utf-8")
        .replace("budget: 1500", "budget: 40\n  eval_every: 10")
    )
    assert "budget: 40" in text
    file = folder / "demo.yaml"
    file.write_text(text.replace("model: mlp", "model: logistic"))
    monkeypatch.setattr(sweep_lookup, "shipped", lambda *_: {"demo": file})


def test_the_demo_has_the_adversary_of_run() -> None:
    names = ("attack", "attack_entry", "clock", "workers", "byzantine")
    default = resolve(RunSpec()).spec
    demo_runs = [run.spec for run in plan(load_sweep("demo")).runs]
    assert {spec.switching for spec in demo_runs} == {"static", default.switching}
    for name in names:
        assert {getattr(spec, name) for spec in demo_runs} == {getattr(default, name)}, name


@pytest.mark.thorough
def test_the_demo_has_a_table_a_picture_and_next_steps(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(folder, monkeypatch)
    outcome = dynabro("demo", "-q", "--jobs", "2")
    assert outcome.code == 0
    _, header, _, *rows, _, rates, _, entry, _, picture = outcome.out[
        outcome.out.index("\n\n") + 1 :
    ].splitlines()
    assert "learning rates" in rates
    assert entry.endswith("dynabro show sf")
    assert header.split("  ")[0] == "method"
    assert [row.rsplit(None, 3)[0].strip() for row in rows] == list(demo.NAMES.values())
    stored = {
        f"{value:.3f}"
        for (value,) in read(folder / "results.db", "SELECT final_accuracy FROM runs")
    }
    assert {cell for row in rows for cell in row.rsplit(None, 2)[1:]} == stored
    assert picture == "plots/demo.png"
    assert (folder / picture).stat().st_size > 1000
    numbers = (folder / "plots" / "demo.csv").read_text().splitlines()
    assert numbers[0].startswith("method,switching,series,mean")
    assert len(numbers) == 7  # a bar for each run
    assert [line.split("dynabro ")[1].split()[0] for line in outcome.err.splitlines()] == [
        "runs",
        "run",
        "new",
    ]
    assert read(folder / "results.db", "SELECT DISTINCT sweep FROM runs") == [("demo",)]
    assert dynabro("demo", "-q").out == outcome.out  # nothing is made again
