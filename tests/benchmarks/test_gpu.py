"""``python -m benchmarks gpu``: no check can end the command, and every check runs without a GPU in
a small form.
"""

from __future__ import annotations

import functools
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.fake_gpu import one_gpu
from benchmarks.gpu.checks import CASES, QUESTIONS, STAGES, How, checks
from benchmarks.gpu.drive import Check, Outcome, forked, measure
from dynabro_cli.core.machine import devices
from dynabro_cli.gradients import graphs
from tests.simulation.recorder import capturing, repeated

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


def test_a_check_that_is_not_needed_is_left_out(tmp_path: Path) -> None:
    """The parts of a round are captured alone only if the whole round cannot be."""
    made = {
        check.name: check for check in checks(How("cuda", tiny=True)) if check.question[0] == "3"
    }
    name = "mnist, momentum:beta=0.9, cwtm"
    parts = [made[f"{name}: {stage} alone"] for stage in STAGES]
    for error, number in (({}, 0), ({"error": "captured nothing: off: memory (1)"}, 5)):
        two = [Check("1. Which?", "versions", 60, dict)]
        two.append(Check("3. Bits?", name, 60, functools.partial(dict, error)))
        two += [part._replace(find=functools.partial(dict, graphs="captured")) for part in parts]
        assert measure(tmp_path, two, 5, lambda _: None) is not bool(error)
        lines = (tmp_path / "gpu.jsonl").read_text().splitlines()
        assert len(lines) == 2 + number


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
    assert list(dict.fromkeys(line["question"] for line in lines)) == [
        question for question in QUESTIONS if not question.startswith("2.")
    ]
    assert {line["error"] for line in lines if "error" in line} <= {
        "ModuleNotFoundError: No module named 'byzfl'"
    }
    equal = [line for line in lines if "same model" in line]
    assert len(equal) == 3
    assert all(
        line["same model"] and line["same again"] and not line["that differ"] for line in equal
    )


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_short")
def test_checks_on_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of the checks that need a GPU are executed, with tensors that have no values."""
    monkeypatch.setattr(graphs, "KernelCapture", capturing(repeated))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: 1 << 30)
    monkeypatch.setattr(devices, "look", list)
    made = [check for check in checks(How("cuda", tiny=True)) if check.question[0] in "13467"]
    with one_gpu() as gpu, gpu.allowed():
        # the first one of each question
        for check in {check.question: check for check in reversed(made)}.values():
            outcome = check.find()
            assert "error" not in outcome, check
            assert outcome.get("graphs", "on").startswith("on"), (check, outcome)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_short")
def test_an_answer_without_a_graph_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 with a changing number of gradients has few rounds of one form; all are captured."""
    made = {
        check.name: check for check in checks(How("cuda", tiny=True)) if check.question[0] == "3"
    }
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(graphs, "KernelCapture", capturing(repeated))
    with one_gpu() as gpu, gpu.allowed():
        outcome = made["cifar10, dynabro, cwmed"].find()
        assert "error" not in outcome
        assert re.match(r"on: [1-9]\d* forms, [1-9]\d* replays", outcome["graphs"])

        def refuses(run: Callable[[], object]) -> object:
            raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr(graphs, "KernelCapture", capturing(refuses))
        outcome = made["mnist, momentum:beta=0.9, cwtm"].find()
        assert outcome["error"].startswith("captured nothing: off: RuntimeError: operation not")
        for stage in STAGES:
            monkeypatch.setattr(graphs, "KernelCapture", capturing(repeated))
            alone = made[f"mnist, momentum:beta=0.9, cwtm: {stage} alone"]
            assert alone.find() == {"graphs": "captured"}, stage


def test_each_set_of_cases_is_known() -> None:
    pytest.importorskip("triton")
    from tests.gpu.kernels import CHECKS

    assert {name.rstrip("0123456789") for name in CASES} == set(CHECKS)
