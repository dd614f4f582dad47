"""``python -m benchmarks gpu``: nothing that a check does ends the command, and what is known is never found out again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import drive
from benchmarks.gpu import steps as steps_module
from benchmarks.gpu.drive import FolderError, measure
from benchmarks.gpu.report import tables
from benchmarks.gpu.steps import STEPS, Check, Found, How, Step, fetching, missing

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


def slow(how: How) -> Iterator[Check]:
    """A check that tells its process, and does not end."""

    def find() -> Found:
        Path(str(how.data_dir), "process").write_text(str(os.getpid()))
        time.sleep(60)
        return {}

    yield Check("one", lambda: {"value": 1.0})
    yield Check("slow", find)


def broken(how: How) -> Iterator[Check]:
    """A device that does not compute until a file says that it does."""

    def find() -> Found:
        if not Path(str(how.data_dir), "works").exists():
            raise RuntimeError("no driver")
        return {"ok": True}

    yield Check("computes", find)


def read(folder: Path) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = json.loads((folder / "gpu.json").read_text())["results"]
    return results


@pytest.mark.thorough
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


STOPPED = """
import sys
from pathlib import Path
from benchmarks.gpu.drive import FolderError, measure
from benchmarks.gpu.steps import How, Step
folder = Path(sys.argv[1])
measure(folder, How("cpu", sys.argv[1], False), 1, steps=[Step("slow", 1, "tests.benchmarks.test_gpu:slow", 50)])
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_command_that_is_stopped_leaves_no_process(number: int, tmp_path: Path) -> None:
    command = subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path)])
    until((tmp_path / "gpu.json").exists)  # the first check is written down
    until((tmp_path / "process").exists)
    until(lambda: bool((tmp_path / "process").read_text()))
    process = int((tmp_path / "process").read_text())
    command.send_signal(number)
    assert command.wait(20) == (-number if number == signal.SIGKILL else 128 + number)
    until(lambda: not alive(process))
    assert read(tmp_path)["slow"].keys() == {"one"}  # what is known stays, and the check that was stopped is not a fault


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(process: int) -> bool:
    """Return True if a process computes or sleeps; a zombie does neither."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False).stdout
    return bool(found.strip()) and not found.startswith("Z")


@pytest.mark.thorough
@pytest.mark.usefixtures("steps")
def test_without_a_device_nothing_else_is_tried(tmp_path: Path) -> None:
    how, said = How("cpu", str(tmp_path), False), []
    both = [Step("first", 0, "tests.benchmarks.test_gpu:broken", 60), Step("second", 1, "tests.benchmarks.test_gpu:broken", 60)]
    assert not measure(tmp_path / "out", how, 1, steps=both, say=said.append)
    assert set(read(tmp_path / "out")) == {"first"}
    assert "first: computes: error (RuntimeError: no driver)" in said
    (tmp_path / "works").touch()
    assert measure(tmp_path / "out", how, 1, steps=both)  # the device is tried again without being asked for
    assert {name: list(checks) for name, checks in read(tmp_path / "out").items()} == {
        "first": ["computes"],
        "second": ["computes"],
    }


@pytest.mark.thorough
@pytest.mark.usefixtures("steps")
def test_without_a_gpu_every_other_step_is_left_out_and_the_next_call_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said: list[str] = []
    for _ in range(2):
        assert measure(tmp_path, How("cuda", None, False), 2, say=said.append)
    results = read(tmp_path)
    assert {name: list(checks) for name, checks in results.items() if name != "machine"} == {
        step.name: ["all"] for step in STEPS[1:]
    }
    assert results["machine"]["versions"]["gpu"] == "none"
    assert results["machine"]["computes"]["state"] == "left out"
    outcomes = {str(results[step.name]["all"]) for step in STEPS[1:]}
    assert "{'state': 'left out', 'error': 'no GPU'}" in outcomes
    assert all(outcome.startswith("{'state': 'left out', 'error': 'n") for outcome in outcomes)  # or it needs a package
    assert said.count("machine: computes: left out (no GPU)") == said.count("no GPU: all other steps are left out") == 2


NEEDS = """
import os
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
absent = {"scipy", "sklearn", "pandas", "matplotlib", "yaml", "sqlalchemy", "alembic", "mako", "torchvision", "typer", "rich"}
absent = absent | {"platformdirs", "safetensors"}
class Bare:
    "Nothing is installed but torch, what torch needs, and what the step says that it needs."
    @staticmethod
    def find_spec(name, *more):
        return None if name.partition(".")[0] in absent else find(name, *more)
sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
import torch
from benchmarks.gpu import child
from benchmarks.gpu.steps import STEPS, How
names = sys.argv[1].split(",")
for step in [step for step in STEPS if step.name in names]:
    sys.stdout.flush()
    process = os.fork()  # so that torch is loaded once, and what a step loads is not there for the next
    if not process:
        absent -= {*step.needs}
        checks = list(step.checks(How("cpu", None, True)))
        found = child.outcome_of(checks[0].find) if step.name in names[:4] else len(checks)
        print(step.name, found, flush=True)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0, step.name
"""


@pytest.mark.thorough
def test_a_step_needs_no_package_that_it_does_not_name() -> None:
    """The first check of some steps, and all checks of others as far as they are made before a GPU is needed."""
    names = ["twice", "waiting", "convolutions", "methods", "graphs", "stopping"]
    command = [sys.executable, "-W", "ignore", "-c", NEEDS, ",".join(names)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert ended.returncode == 0, ended.stderr
    assert sorted(line.split()[0] for line in ended.stdout.splitlines()) == sorted(names)
    for line in ended.stdout.splitlines():
        assert "error" not in line or "no GPU" in line, line


def test_missing_packages_are_named_with_the_lines_that_fetch_them(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = fetching(["alembic", "torchvision"])
    assert lines[0].startswith("pip download --only-binary=:all: --python-version 3.")
    assert lines[0].endswith(" -d wheels alembic")
    assert lines[1].endswith(" -d wheels --no-deps torchvision")
    assert lines[2] == "pip install --no-index --find-links wheels alembic torchvision"
    monkeypatch.setattr(steps_module, "here", lambda module: module not in ("sqlalchemy", "yaml"))
    assert missing() == ["sqlalchemy", "pyyaml"]


def test_results_of_a_trial_are_not_taken_for_those_of_a_gpu(tmp_path: Path) -> None:
    assert measure(tmp_path, How("cpu", None, True), 1, steps=[])
    with pytest.raises(FolderError, match=r"--device cpu --tiny\. Try: another folder"):
        measure(tmp_path, How("cuda", None, False), 1, steps=[])


def test_every_step_has_tables_and_none_needs_a_gpu_to_be_listed(tmp_path: Path) -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert STEPS[0].part == 0
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
