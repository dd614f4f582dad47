"""Each row on ByzFL in docs/comparison.md is true: its calls of both libraries give the same
numbers, its fields make a sweep, and its commands parse.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dynabro_cli.experiment.grid.plan import plan
from dynabro_cli.experiment.grid.sweep_file import parse_sweep
from tests.command_lines import parse
from tests.tables import each_row
from tests.test_readme import blocks, quoted, tables

TEXT = (Path(__file__).parents[1] / "docs" / "comparison.md").read_text(encoding="utf-8")
(_, CALLS), (_, FIELDS), (_, COMMANDS), _ = tables(TEXT)


@pytest.mark.parametrize("seed", range(5))
def test_calls_of_both_libraries_give_the_same_numbers(seed: int) -> None:
    torch.manual_seed(seed)
    names: dict[str, Any] = {}
    for block in blocks("python", TEXT):
        exec(block, names)
    ours = [eval(quoted(row[1])[0], names) for row in CALLS]
    assert all(value.shape[-1] == 5 for value in ours)
    names["byzfl"] = pytest.importorskip("byzfl")
    x, changed = names["x"].clone(), []
    for row, value in zip(CALLS, ours, strict=True):
        names["x"] = x.clone()
        theirs = torch.as_tensor(eval(quoted(row[0])[0], names))
        torch.testing.assert_close(value, theirs, rtol=1e-4, atol=1e-5, msg=row[0])
        if not torch.equal(names["x"], x):
            changed.append(row[0].partition("(")[0].strip("`"))
    assert changed == ["byzfl.Clipping", "byzfl.ARC"]  # as the page says


@each_row("row", FIELDS, ids=[row[0] for row in FIELDS])
def test_fields_make_a_sweep(row: list[str]) -> None:
    fields = yaml.safe_load(quoted(row[1])[0])
    seeds = fields.pop("seeds", 0)
    text = yaml.safe_dump({"name": "mine", "base": {"task": "digits", **fields}, "seeds": seeds})
    assert plan(parse_sweep(text, "mine.yaml")).runs


def test_all_fields_make_one_sweep() -> None:
    base: dict[str, Any] = {}
    for row in FIELDS:
        base |= yaml.safe_load(quoted(row[1])[0])
    seeds = base.pop("seeds")
    text = yaml.safe_dump({"name": "mine", "base": base, "seeds": seeds})
    planned = plan(parse_sweep(text, "mine.yaml"))
    assert len(planned.runs) == 3
    assert planned.runs[0].spec.method == "momentum"
    assert planned.runs[0].spec.attack_entry == "message"


@each_row("row", COMMANDS, ids=[row[0] for row in COMMANDS])
def test_commands_parse(row: list[str]) -> None:
    parse(shlex.split(quoted(row[1])[0].removeprefix("dynabro ")))
