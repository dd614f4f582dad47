"""Sweeps as their files say them."""

from __future__ import annotations

from typing import Any

import pytest

from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.grid.sweep_file import Axis, Sweep, parse_sweep
from dynabro_cli.experiment.spec import RunSpec
from tests.tables import each_row

WHOLE = """
name: whole
description: >
  All there is,
  in two lines
base:
  task: digits
  learning_rate: 1e-3
  lr_drop: 0.8:0.1
grid:
  method: [sgd, "momentum:beta=0.9,form=heavy-ball", {method: dynabro, learning_rate: 0.05}]
  mixed:
    - {attack: alie, aggregator: gm}
    - attack: sf
exclude:
  - {method: sgd, attack: sf}
seeds: [7, 0..2, 1]
"""


def problems(text: str, *, named: bool = True) -> list[str]:
    """The problems of a sweep, without the file's name; its name is added in the first line."""
    with pytest.raises(SpecError) as caught:
        parse_sweep("name: x\n" + text if named else text, "x.yaml")
    assert all(line.startswith("x.yaml:") for line in caught.value.problems)
    return [line.removeprefix("x.yaml:") for line in caught.value.problems]


def test_a_whole_sweep() -> None:
    sweep = parse_sweep(WHOLE, "whole.yaml")
    assert sweep == Sweep(
        "whole",
        "All there is, in two lines",
        {"task": "digits", "learning_rate": "1e-3", "lr_drop": "0.8:0.1"},
        (
            Axis(
                "method",
                (
                    {"method": "sgd"},
                    {"method": "momentum:beta=0.9,form=heavy-ball"},
                    {"method": "dynabro", "learning_rate": "0.05"},
                ),
            ),
            Axis("mixed", ({"attack": "alie", "aggregator": "gm"}, {"attack": "sf"})),
        ),
        ({"method": "sgd", "attack": "sf"},),
        (7, 0, 1, 2),
    )
    assert [axis.fields for axis in sweep.grid] == [
        ["method", "learning_rate"],
        ["attack", "aggregator"],
    ]
    assert sweep.places["attack", "sf"] == "whole.yaml:14"


def test_a_name_is_enough() -> None:
    assert parse_sweep("name: x", "x") == Sweep("x")


def test_numbers_are_numbers_and_words_are_words() -> None:
    base = parse_sweep("{name: x, base: {learning_rate: 1e-3, budget: 5e3, attack: off}}", "x").base
    spec = RunSpec.from_text(base)
    assert (spec.learning_rate, spec.budget, spec.attack) == (0.001, 5000, "off")


@each_row(
    ("text", "seeds"),
    [
        ("3", (3,)),
        ("0..4", (0, 1, 2, 3, 4)),
        ("[5, 1]", (5, 1)),
        ("5..5", (5,)),
        (str(2**63 - 1), (2**63 - 1,)),
    ],
)
def test_seeds(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_sweep(f"{{name: x, seeds: {text}}}", "x").seeds == seeds


WORDS = {
    "attack_entry": "state",
    "clock": "round",
    "lr_rule": "fixed",
    "lr_drop": "none",
    "precision": "bf16",
    "validation": "0.5",
}


@each_row("name", [*WORDS, "method", "budget"])
def test_any_field_can_be_in_the_base(name: str) -> None:
    assert name in parse_sweep(f"{{name: x, base: {{{name}: '{WORDS.get(name, '1')}'}}}}", "x").base


REFUSED: list[tuple[str, list[str]]] = [
    (
        "bass: {}\n",
        [
            (
                "2: unknown key 'bass' (did you mean 'base'?); legal: name, description, extends, "
                "plugins, base, grid, "
            )
        ],
    ),
    ("<<: {}\n", ["2: unknown key '<<'"]),
    ("base: [sgd]\n", ["2: base must be a mapping"]),
    ("base:\n  bugdet: 5\n", ["3: unknown field 'bugdet' (did you mean 'budget'?); legal: task, "]),
    ("base:\n  epochs: 5\n", ["3: unknown field 'epochs' (did you mean 'budget'?); legal: task, "]),
    ("grid:\n  rule: [gm]\n", ["3: unknown field 'rule' (did you mean 'aggregator'?); legal: "]),
    (
        "base:\n  budget: many\n",
        [
            (
                "3: budget=many is not legal; budget must be a whole number >= 1 and <= 2000000000 "
                "or auto"
            )
        ],
    ),
    ("base:\n  learning_rate: .nan\n", ["3: learning_rate=.nan is not legal"]),
    ("base:\n  lr_drop: 2:0.1\n", ["3: lr_drop=2:0.1 is not legal"]),
    ("base:\n  model: ~\n", ["3: model has no value. Try: without it, or auto"]),
    ("base:\n  method: [sgd]\n", ["3: method takes one value here; a list belongs under grid"]),
    (
        "base: {switching: bernoulli:p=0.1,D=3}\n",
        ["2: unknown field 'D=3'; legal: ", "needs quotes"],
    ),
    ("grid: [sgd]\n", ["2: grid must be a mapping"]),
    ("grid:\n  method: sgd\n", ["3: method must be a list with at least one value"]),
    ("grid:\n  method: []\n", ["3: method must be a list with at least one value"]),
    (
        "grid:\n  methd: [sgd]\n",
        [
            "3: unknown field 'methd' (did you mean 'method'?)",
            "only a list of mappings may have another name",
        ],
    ),
    ("grid:\n  method: [[sgd]]\n", ["3: method takes one value here"]),
    (
        "grid:\n  switching: [bernoulli:p=0.1,D=3]\n",
        ["3: switching=D=3 is not legal; inside [ ] and { } a value with a comma"],
    ),
    (
        "grid:\n  a: [{method: sgd}]\n  method: [dynabro]\n",
        ["3: grid varies method twice, under 'a' and under 'method'"],
    ),
    (
        "base: {method: sgd}\ngrid:\n  method: [dynabro]\n",
        ["2: base sets method, and so does every point of 'method' in grid"],
    ),
    ("exclude: {method: sgd}\n", ["2: exclude must be a list of mappings"]),
    ("exclude: [{}]\n", ["2: a point to exclude must name a field"]),
    ("exclude: [{model: auto}]\n", ["2: model=auto cannot be excluded"]),
    ("seeds: 4..0\n", ["2: seeds=4..0 is not legal; FIRST..LAST must rise"]),
    ("seeds: 0..99999999999\n", ["2: seeds=0..99999999999 is not legal"]),
    (
        "seeds: many\n",
        ["2: seeds=many is not legal; it must be a seed, or FIRST..LAST such as 0..4"],
    ),
    (f"seeds: 0..{'7' * 5000}\n", ["2: seeds=0..777"]),
    ("seeds: 9223372036854775808\n", ["2: seed=9223372036854775808 is not legal"]),
    ("seeds: []\n", ["2: seeds is empty"]),
    ("seeds: {}\n", ["2: seeds must be a seed, a list of seeds"]),
    ("seeds: 1\nbase: {seed: 1}\n", ["2: seeds are given, and base or grid set seed"]),
    ("description: [a]\n", ["2: description must be a text"]),
]


@each_row(("text", "expected"), REFUSED, ids=[text for text, _ in REFUSED])
def test_what_is_refused(text: str, expected: list[str]) -> None:
    start, *rest = expected
    found = problems(text)
    assert any(line.startswith(start) and all(part in line for part in rest) for line in found), (
        found
    )
    assert len(found) == 1 or "D=" in text


@each_row(
    ("text", "expected"),
    [
        ("base: {}\n", "1: a sweep needs a name"),
        ("name: a b\n", "1: name 'a b' is not legal"),
        ("name: ../x\n", "1: name '../x' is not legal"),
        ("name: [x]\n", "1: name must be a text"),
        ("- name\n", "1: a sweep is a mapping with the keys name, "),
        ("name: " + "x" * 1_000_000, " it has more than 1,000,000 characters"),
    ],
)
def test_names_and_documents(text: str, expected: str) -> None:
    (line,) = problems(text, named=False)
    assert line.startswith(expected)


def test_every_problem_is_told_at_once() -> None:
    text = "bass: 1\nbase:\n  bugdet: 1\n  clock: hour\ngrid:\n  workers: [many, 5, 0]\nseeds: x\n"
    assert [line.split(":")[0] for line in problems(text)] == ["2", "4", "5", "7", "7", "8"]


@pytest.mark.parametrize("value", ["1", "x", None])
def test_sweeps_are_compared_by_what_they_say(value: Any) -> None:
    """The places of values in the file play no part."""
    first, second = (
        parse_sweep(f"{space}name: x\nbase: {{task: '{value}'}}\n", "x") for space in ("", "\n\n")
    )
    assert first == second
    assert first.places != second.places


def test_seeds_are_counted_before_they_are_listed() -> None:
    """Each word names 10^4 seeds at most, and a file of a megabyte has 10^5 words."""
    assert problems("seeds: 0..1000000000") == [
        "2: seeds=0..1000000000 is not legal; FIRST..LAST must rise, by less than 10,000"
    ]
    (line,) = problems(f"seeds: [{', '.join(['0..9999'] * 1000)}]")
    assert (
        line
        == "2: it has 110,000 seeds so far, and a sweep may have 100,000 points; make several of it"
    )
