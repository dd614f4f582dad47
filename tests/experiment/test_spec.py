"""RunSpec: its fields, and what is wrong with them one by one."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from dynabro_cli import RunSpec
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.complete import format_drops, parse_drops
from dynabro_cli.experiment.spec import fields, option
from tests.tables import each_row


def test_defaults_are_the_papers_main_setting() -> None:
    spec = RunSpec()
    assert (spec.task, spec.method, spec.attack, spec.attack_entry) == (
        "digits",
        "dynabro",
        "sf",
        None,
    )
    assert (spec.switching, spec.clock, spec.pre_aggregators, spec.seed) == (
        "periodic:K=10",
        "round",
        "none",
        0,
    )
    assert spec.problems() == []


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunSpec().seed = 1  # type: ignore[misc]
    assert RunSpec(seed=1) == RunSpec(seed=1) != RunSpec(seed=2)
    assert len({RunSpec(seed=1), RunSpec(seed=1)}) == 1


def test_unknown_fields_are_refused_all_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        RunSpec.from_mapping({"sed": 1, "budget": 5, "learning-rate": 0.1, "xyzzy": 0})
    first, second, third = caught.value.problems
    assert first.startswith(
        "unknown field 'sed' (did you mean 'seed'?); legal: task, model, method, "
    )
    assert second.startswith(
        "unknown field 'learning-rate' (did you mean 'learning_rate'?); legal: "
    )
    assert third.startswith("unknown field 'xyzzy'; legal: ")
    assert RunSpec.from_mapping({"seed": 1, "task": "mnist"}) == RunSpec(seed=1, task="mnist")


def test_unknown_fields_of_text_are_refused() -> None:
    with pytest.raises(SpecError, match="unknown field 'budgte' \\(did you mean 'budget'\\?\\)"):
        RunSpec.from_text({"budgte": "5", "seed": "1"})


def test_text_becomes_numbers() -> None:
    spec = RunSpec.from_text(
        {
            "seed": "7",
            "workers": "17",
            "budget": "1e3",
            "learning_rate": "1e-3",
            "weight_decay": "0",
            "method": "sgd",
        }
    )
    assert spec == RunSpec(
        seed=7, workers=17, budget=1000, learning_rate=1e-3, weight_decay=0.0, method="sgd"
    )
    assert {
        name: type(getattr(spec, name)) for name in ("seed", "workers", "budget")
    } == dict.fromkeys(("seed", "workers", "budget"), int)
    assert spec.problems() == []


def test_auto_is_the_tasks_own() -> None:
    optional = [name for name, info in fields().items() if info.optional]
    assert RunSpec.from_text(dict.fromkeys(optional, "auto")) == RunSpec()
    assert optional == [
        field.name for field in dataclasses.fields(RunSpec) if field.default is None
    ]


@pytest.mark.parametrize("seed", [2**53 + 1, 2**62 + 1, 2**63 - 1])
def test_large_seeds_are_read_as_typed(seed: int) -> None:
    """The seed is not read as a float, which would turn 2^53 + 1 into another seed."""
    spec = RunSpec.from_text({"seed": str(seed)})
    assert spec.seed == seed
    assert spec.problems() == []


ILLEGAL: list[tuple[str, Any, str]] = [
    (
        "workers",
        0,
        "workers=0 is not legal. Try: --workers with a whole number >= 1 and <= 1000000 or auto",
    ),
    (
        "workers",
        True,
        "workers=true is not legal. Try: --workers with a whole number >= 1 and <= 1000000 or auto",
    ),
    (
        "workers",
        "many",
        "workers=many is not legal. Try: --workers with a whole number >= 1 and <= 1000000 or auto",
    ),
    (
        "byzantine",
        -1,
        (
            "byzantine=-1 is not legal. Try: --byzantine with a whole number >= 0 and <= "
            "2147483647 or auto"
        ),
    ),
    (
        "budget",
        0,
        "budget=0 is not legal. Try: --budget with a whole number >= 1 and <= 2000000000 or auto",
    ),
    (
        "batch_size",
        0,
        (
            "batch_size=0 is not legal. Try: --batch-size with a whole number >= 1 and <= "
            "2147483647 or auto"
        ),
    ),
    ("learning_rate", 0.0, "learning_rate=0 is not legal. Try: --lr with a number > 0 or auto"),
    (
        "learning_rate",
        math.nan,
        "learning_rate=nan is not legal. Try: --lr with a number > 0 or auto",
    ),
    (
        "weight_decay",
        math.inf,
        "weight_decay=inf is not legal. Try: --weight-decay with a number >= 0 or auto",
    ),
    (
        "eval_every",
        0,
        (
            "eval_every=0 is not legal. Try: --eval-every with a whole number >= 1 and <= "
            "2147483647 or auto"
        ),
    ),
    (
        "seed",
        2**63,
        f"seed={2**63} is not legal. Try: --seed with a whole number >= 0 and <= {2**63 - 1}",
    ),
    (
        "seed",
        None,
        f"seed=auto is not legal. Try: --seed with a whole number >= 0 and <= {2**63 - 1}",
    ),
    (
        "attack_entry",
        "before",
        (
            "attack_entry=before is not legal. Try: --attack-entry with gradient or computation or "
            "message or state or data or auto"
        ),
    ),
    ("clock", "wall", "clock=wall is not legal. Try: --clock with round or computation"),
    ("lr_rule", "adam", "lr_rule=adam is not legal. Try: --lr-rule with fixed or adagrad-norm"),
    (
        "precision",
        "fp64",
        "precision=fp64 is not legal. Try: --precision with fp32 or tf32 or bf16",
    ),
    ("validation", 1.0, "validation=1 is not legal. Try: --validation with a number >= 0 and < 1"),
    ("data", None, "data=auto is not legal. Try: --data with a word"),
    ("method", 3, "method=3 is not legal. Try: --method with a word"),
    ("pre_aggregators", None, "pre_aggregators=auto is not legal. Try: --pre with a word"),
]


@each_row(("name", "value", "line"), ILLEGAL, ids=lambda item: str(item)[:20])
def test_illegal_values(name: str, value: Any, line: str) -> None:
    assert RunSpec(**{name: value}).problems() == [line]


@each_row(
    ("name", "text"),
    [
        ("workers", "2.5"),
        ("workers", "many"),
        ("learning_rate", "inf"),
        ("seed", ""),
        ("budget", "1e400"),
    ],
)
def test_text_that_is_no_legal_number_is_kept_to_be_complained_about(name: str, text: str) -> None:
    spec = RunSpec.from_text({name: text})
    assert getattr(spec, name) == text
    (line,) = spec.problems()
    assert line.startswith(f"{name}={text} is not legal. Try: {option(name)} with ")


def test_every_illegal_field_is_told() -> None:
    spec = RunSpec(workers=0, budget=-1, clock="wall", seed=-1)
    assert [line.partition("=")[0] for line in spec.problems()] == [
        "clock",
        "workers",
        "budget",
        "seed",
    ]


def test_options() -> None:
    assert [
        option(name)
        for name in ("learning_rate", "pre_aggregators", "attack_entry", "lr_rule", "seed")
    ] == [
        "--lr",
        "--pre",
        "--attack-entry",
        "--lr-rule",
        "--seed",
    ]


def test_drops() -> None:
    assert parse_drops("none") == ()
    assert parse_drops("0.8:0.1") == ((0.8, 0.1),)
    assert parse_drops("0.8:0.5,0.50:1e-1") == ((0.5, 0.1), (0.8, 0.5))
    for text in ("none", "0.8:0.1", "0.5:0.1,0.8:2"):
        assert format_drops(parse_drops(text)) == text


@each_row(
    "text",
    [
        "",
        "0.8",
        "0.8:0",
        "0:0.1",
        "1:0.1",
        "x:1",
        "0.8:0.1:2",
        "0.8:0.1,",
        "nan:0.1",
        "0.5:inf",
    ],
)
def test_illegal_drops(text: str) -> None:
    with pytest.raises(SpecError, match=f"lr_drop={text} is not legal; .*Try: --lr-drop 0.8:0.1"):
        parse_drops(text)
