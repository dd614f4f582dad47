"""``python -m benchmarks gpu``: nothing that a check does ends the command, and what is known is never found out again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import drive
from benchmarks.gpu.drive import measure
from benchmarks.gpu.report import tables
from benchmarks.gpu.steps import STEPS, Check, Found, How, Step

HOW = How("cpu", None, True)


def faulty(how: How) -> Iterator[Check]:
    """Checks that go well, go wrong, raise, end their process, and hang; a file tells how often each was made."""

    def found(name: str, then: Any) -> Check:
        def find() -> Found:
            with Path(str(how.data_dir), name).open("a") as file:
                file.write(".")
            return then()

        return Check(name, find, 1.5 if name == "hangs" else 30)

    def lost() -> Found:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    yield found("well", lambda: {"value": 1.5})
    yield found("wrong", lambda: {"value": 2, "ok": False})
    yield found("raises", lambda: {}["nothing"])
    yield found("dies", lambda: os._exit(11))
    yield found("hangs", lambda: time.sleep(60) or {})
    yield found("loses the device", lost)
    yield found("last", lambda: {"ok": True})


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """A step with the checks above, which its process finds in this module."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(drive, "START", 60.0)
    return [
        Step("faulty", 1, "tests.benchmarks.test_gpu:faulty", 120),
        Step("lacks", 2, "right:rules", 60, ("no_such_module",)),
    ]


def read(folder: Path) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = json.loads((folder / "gpu.json").read_text())["results"]
    return results


def test_nothing_that_a_check_does_ends_the_command(tmp_path: Path, steps: list[Step]) -> None:
    how, said = How("cpu", str(tmp_path), False), []
    assert measure(tmp_path / "out", how, 5, say=said.append, steps=steps)
    results = read(tmp_path / "out")
    states = {name: outcome["state"] for name, outcome in results["faulty"].items()}
    assert states == {
        "well": "done",
        "wrong": "wrong",
        "raises": "error",
        "dies": "crashed",
        "hangs": "hung",
        "loses the device": "error",
        "last": "done",
    }
    assert results["faulty"]["well"]["value"] == 1.5
    assert "KeyError" in results["faulty"]["raises"]["error"]
    assert "code 11" in results["faulty"]["dies"]["error"]
    assert results["lacks"]["all"] == {"state": "left out", "error": "needs no_such_module"}
    assert "Traceback" in (tmp_path / "out" / "log.txt").read_text()
    page = (tmp_path / "out" / "gpu.md").read_text()
    assert "- faulty, dies: crashed. the process ended with code 11" in page

    assert measure(tmp_path / "out", how, 5, say=said.append, steps=steps)  # nothing is left to do
    assert {name: len((tmp_path / name).read_text()) for name in states} == dict.fromkeys(states, 1)
    assert measure(tmp_path / "out", how, 5, say=said.append, steps=steps, again=True)
    made = {name: len((tmp_path / name).read_text()) for name in states}
    assert made == {name: 1 if state == "done" else 2 for name, state in states.items()}


def test_the_time_is_kept_and_the_next_call_goes_on(tmp_path: Path, steps: list[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    how = How("cpu", str(tmp_path), False)
    monkeypatch.setattr(drive, "RESERVE", 0.0)
    monkeypatch.setattr(drive, "LEAST", 0.0)
    begun = time.monotonic()
    assert not measure(tmp_path / "out", how, 0.0, steps=steps[:1])
    assert not read(tmp_path / "out")
    monkeypatch.setattr(drive, "LEAST", 1000.0)
    assert not measure(tmp_path / "out", how, 1, steps=steps[:1])  # too little time to begin with
    assert time.monotonic() - begun < 60
    assert not read(tmp_path / "out")


def test_every_step_has_tables_and_none_needs_a_gpu_to_be_listed(tmp_path: Path) -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert [step.part for step in STEPS] == sorted(step.part for step in STEPS)
    outcome = {"state": "done", "ok": True, "value": 0.25, "seconds": 1.0}
    whole = {
        "how": {"device": "cuda"},
        "missing": ["triton"],
        "written": "now",
        "results": {step.name: {"one": outcome} for step in STEPS},
    }
    page = tables(whole)
    assert page.count("| one | done | 0.25 | 1 |") == len(STEPS)
    assert "Missing packages: triton." in page


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_command_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check is made, with tiny sizes; those that need a GPU say so."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(drive, "START", 120.0)
    assert measure(tmp_path, HOW, 14, again=True)
    results = read(tmp_path)
    assert set(results) == {step.name for step in STEPS}
    bad = {
        (step, name): outcome
        for step, checks in results.items()
        for name, outcome in checks.items()
        if outcome["state"] not in ("done", "left out")
    }
    assert not bad
    assert results["stopping"]["SIGTERM and resume"]["same numbers"]
    assert results["memory"]["out of memory"]["state"] == "left out"
