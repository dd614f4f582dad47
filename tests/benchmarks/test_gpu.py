"""``python -m benchmarks gpu``: no check can end the command, and every check runs without a GPU in
a small form.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.fake_gpu import one_gpu
from benchmarks.gpu.checks import KERNELS, QUESTIONS, How, checks
from benchmarks.gpu.drive import Check, Outcome, forked, measure
from dynabro_cli.gradients import graphs
from tests.gpu.test_rounds import capture

FAULTS: dict[str, tuple[Callable[[], Outcome], str]] = {
    "raises": (lambda: Outcome()["nothing"], "KeyError: 'nothing'"),
    "dies": (lambda: os._exit(11), "the process ended with code 11"),
    "hangs": (lambda: Outcome(ended=time.sleep(60)), "longer than 1 s"),  # type: ignore[func-returns-value]
}


def test_nothing_that_a_check_does_ends_the_command(tmp_path: Path) -> None:
    said: list[str] = []
    well = Check(
        "1. Well?", "well", 60, lambda: {"value": 0.25, "rows": [{"kernel": "a", "us": 3.0}]}
    )
    faults = [
        Check("2. Wrong?", name, 1 if name == "hangs" else 60, find)
        for name, (find, _) in FAULTS.items()
    ]
    assert not measure(tmp_path, [well, *faults, well], 5, said.append)
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [line.get("error") for line in lines] == [
        None,
        *(error for _, error in FAULTS.values()),
        None,
    ]
    assert [line["value"] for line in (lines[0], lines[-1])] == [0.25, 0.25]
    assert len(said) == 5
    assert "Traceback" in (tmp_path / "log.txt").read_text()
    page = (tmp_path / "gpu.md").read_text()
    assert re.search(r"\| dies +\|.*\| the process ended with code 11 \|", page)
    assert "### well\n\n| kernel |  us |\n| ------ | --: |\n| a      |   3 |" in page


@pytest.mark.parametrize(
    ("first", "minutes", "why"), [(FAULTS["raises"][0], 5, "KeyError"), (dict, 0.1, "no time left")]
)
def test_without_a_device_nothing_else_is_tried(
    first: Callable[[], Outcome], minutes: float, why: str, tmp_path: Path
) -> None:
    two = [Check("1. Which?", "versions", 60, first), Check("2. Then?", "next", 60, dict)]
    assert not measure(tmp_path, two, minutes, lambda _: None)
    (line,) = (tmp_path / "gpu.jsonl").read_text().splitlines()
    assert json.loads(line)["error"].startswith(why)


def test_processes_end_together_and_with_the_time(tmp_path: Path) -> None:
    outcomes = forked(
        [lambda: {"value": 1}, FAULTS["hangs"][0], FAULTS["dies"][0]], 1, tmp_path / "log"
    )
    assert outcomes == [{"value": 1}, {"error": FAULTS["hangs"][1]}, {"error": FAULTS["dies"][1]}]


def test_every_kernel_can_be_switched_off() -> None:
    assert all(
        hasattr(importlib.import_module(module), "triton_works") for module in KERNELS.values()
    )


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs short: their rounds are read every two rounds."""
    for module in ("dynabro_cli.simulation.loop", "benchmarks.gpu.checks"):
        monkeypatch.setattr(f"{module}.FLUSH_ROUNDS", 2)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_short")
def test_the_whole_command_on_a_cpu(tmp_path: Path) -> None:
    patient = [check._replace(seconds=300) for check in checks(How("cpu", tiny=True))]
    measure(tmp_path, patient, 14, lambda _: None)
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert list(dict.fromkeys(line["question"] for line in lines)) == list(QUESTIONS)
    assert {line["error"] for line in lines if "error" in line} <= {
        "ModuleNotFoundError: No module named 'byzfl'"
    }
    equal = [line for line in lines if "same model" in line]
    assert len(equal) == 3
    assert all(
        line["same model"] and line["same again"] and not line["that differ"] for line in equal
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_short")
def test_checks_on_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of the checks that need a GPU are executed, with tensors that have no values."""
    monkeypatch.setattr(graphs, "KernelCapture", lambda _: capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: 1 << 30)
    made = [check for check in checks(How("cuda", tiny=True)) if check.question[0] in "12345"]
    with one_gpu() as gpu, gpu.allowed():
        # the first one of each question
        for check in {check.question: check for check in reversed(made)}.values():
            outcome = check.find()
            assert "error" not in outcome, check
            assert outcome.get("graphs", "on").startswith("on"), (check, outcome)
