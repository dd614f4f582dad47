"""Advice for words of other tools."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dynabro_cli.cli.hints import EXAMPLES, REMOVE, SAID
from dynabro_cli.experiment.grid.sweep_file import ELSEWHERE
from dynabro_cli.experiment.spec import fields
from tests.cli.conftest import Dynabro
from tests.command_lines import commands, program

ADVICE = {
    "run --dataset mnist": "there is no option --dataset. Try: --task digits",
    "run --epochs 3": "there is no option --epochs. Try: --budget 5000",
    "run --momentum 0.9": "there is no option --momentum. Try: --method momentum:beta=0.9",
    "run -f 2": "there is no option -f. Try: --byzantine 3",
    "sweep demo -j 2": "there is no option -j. Try: --jobs 2",
    "sweep demo --epochs 3": "there is no option --epochs. Try: --set budget=5000",
    "sweep demo --seeds 0..1": "there is no option --seeds. Try: --set seeds=0..4",
    "runs --epoch 3": "No such option: --epoch. Try: dynabro runs --help",
    "delete 3": "No such command 'delete'. Try: dynabro db remove --where 'id = 3'",
    "rm 3 4": "No such command 'rm'. Try: dynabro db remove --where 'id IN (3, 4)'",
    "db remove q1": ("Missing option '--where'. Try: dynabro db remove --where \"sweep = 'q1'\""),
    "query SELECT 1 --db some.db": (
        'Got unexpected extra argument (1). Try: dynabro query "SELECT 1" --db some.db'
    ),
    "query 'SELECT 1' --timeout": ("Option '--timeout' requires an argument. Try: dynabro --help"),
    "db remove --where 'id = 1' 2": (
        "Got unexpected extra argument (2). Try: dynabro db remove --help"
    ),
    "tag q1 paper --remove": "Option '--remove' requires an argument. Try: --remove paper",
    "sweeps": "No such command 'sweeps'. Did you mean 'sweep'? Try: dynabro --help",
    "--install-completion zsh": (
        "--install-completion takes no value. Try: dynabro --install-completion"
    ),
}


@pytest.mark.parametrize("typed", ADVICE)
def test_advice(typed: str, dynabro: Dynabro) -> None:
    outcome = dynabro(*shlex.split(typed))
    assert (outcome.code, outcome.out) == (2, "")
    # click and the copy of it in newer versions of typer differ in this word
    assert [line.replace("argument(s)", "argument") for line in outcome.problems] == [ADVICE[typed]]


def test_all_advice_is_an_option_and_no_option_is_advised_against() -> None:
    known = {
        name
        for command in ("run", "sweep", "plot")
        for parameter in program().commands[command].params
        for name in parameter.opts
    }
    assert {text.split()[0] for text in SAID.values()} <= known
    assert set(ELSEWHERE.values()) == EXAMPLES.keys() <= fields().keys()
    assert not known & {*SAID, *(f"--{word.replace('_', '-')}" for word in ELSEWHERE)}
    assert not {words[0] for words in commands()} & set(REMOVE)


def test_a_sweeps_name_is_known_where_a_run_is_asked_for(dynabro: Dynabro, folder: Path) -> None:
    (folder / "q1.yaml").write_text("name: q1\nseeds: 3\nbase: {task: quadratic, budget: 20}\n")
    assert dynabro("sweep", "q1").problems == [
        "there is no sweep 'q1' (No such file or directory). Try: q1.yaml"
    ]
    outcome = dynabro("sweep", "q1.yaml", "--jobs", "0", "--quiet")
    assert outcome.err == "seeds: 3 is one seed. For 3 of them: --set seeds=0..2\n"
    assert dynabro("logs", "q1").problems == [
        "there is no run 'q1'. Try: dynabro runs q1, which lists ids and keys"
    ]
    for given in (("q1",), ("--sweep", "q1")):
        assert dynabro("runs", *given, "--csv").out.count("\n") == 2
        assert dynabro("export", "final", *given, "--csv", "-").out.count("\n") == 2


@pytest.mark.parametrize("given", [("aggregator", "cwtm"), ("figure", "kappa")])
def test_a_new_component_has_a_name_of_its_own(given: tuple[str, str], dynabro: Dynabro) -> None:
    kind, name = given
    assert dynabro("new", kind, name).problems == [
        f"name={name}: dynabro has a component of this name. Try: dynabro new {kind} my-{name}"
    ]
