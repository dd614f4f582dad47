"""Kernels that fail on a GPU, or that are wrong there: torch computes, and the run says so."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.fake_gpu import FakeGPU
from dynabro_cli.core.machine import gpu_kernels
from dynabro_cli.core.machine.gpu_kernels import KERNELS, KernelOffError, checked
from tests.gpu.test_kernels import ROOT, started

TRIAL = gpu_kernels.trial
GPU = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernels, "off", {})
    monkeypatch.setattr(gpu_kernels, "_checked", set())


def interpreted(*words: str) -> tuple[list[dict[str, Any]], int]:
    """Run ``tests.gpu.trial``; return the objects that it prints, and its exit code."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.gpu.trial", *words],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in (0, 11), ended.stderr[-2000:]
    return [json.loads(line) for line in ended.stdout.splitlines()], ended.returncode


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fault", "off", "why"),
    [
        ((), None, ""),
        (("mean", "raises"), "mean", "RuntimeError: PassManager::run failed"),
        (("order", "bit"), "order", "a result of shape [1500] differs from torch's by 1.4e-45"),
        (("order", "later"), "order", "RuntimeError: PassManager::run failed"),
        (("steps", "raises"), "gm", "RuntimeError: PassManager::run failed"),
        (("shift", "bit"), "signguard", "a result of shape [17] differs from torch's by 1.0e+00"),
        (("input_gradient", "raises"), "norm", "RuntimeError: PassManager::run failed"),
        (("dropped", "bit"), "dropout", "a result of shape [4, 1027] differs from torch's by 1"),
    ],
)
def test_the_trial_finds_the_kernel_that_fails(
    fault: tuple[str, ...], off: str | None, why: str
) -> None:
    lines, _ = interpreted("trial", *fault)
    verdicts = {name: text for line in lines for name, text in line.items()}
    assert set(verdicts) == set(KERNELS)
    assert {name for name, text in verdicts.items() if text} == ({off} if off else set())
    assert off is None or verdicts[off].startswith(why)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fault", "off"),
    [
        ((), set()),
        (("moments", "raises"), {"norm"}),
        (("sums", "raises"), {"norm"}),
        (("dropped", "bit"), {"dropout"}),
        (("normal", "later"), {"norm"}),
    ],
)
def test_gradients_are_right_whatever_kernel_fails(fault: tuple[str, ...], off: set[str]) -> None:
    """Also if it fails in the middle of a pass, or later for mini-batches of another size."""
    (found,), _ = interpreted("networks", *fault)
    assert found.pop("error") < 1e-5
    assert set(found) == off


def test_torch_computes_in_the_place_of_a_kernel_that_is_wrong() -> None:
    right, wrong = torch.zeros(3, 2), torch.zeros(3, 2)
    wrong[2, 1] = 1e-45
    calls = list[str]()

    def called(name: str, result: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: (calls.append(name), result)[1]

    with pytest.warns(UserWarning, match=r"without Triton's kernel mean on this GPU: a result of"):
        assert checked("mean", 1, called("wrong", wrong), called("torch", right)) is right
    assert set(gpu_kernels.off) == {"mean"}
    assert not gpu_kernels.triton_works("mean", torch.zeros(1))
    calls.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert (
                checked("order", 1, called("fast", right.clone()), called("torch", right))
                is not right
            )
        assert calls == ["fast", "torch", "fast", "fast"]
        assert checked("order", 2, called("fast", right), called("torch", right)) is right
    assert calls[4:] == ["fast", "torch"]


@pytest.mark.parametrize(
    ("result", "expected", "bound", "agrees"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], 0.0, True),
        ([1.0, float("inf")], [1.0, float("inf")], 0.0, True),
        ([1.0, float("nan")], [1.0, 2.0], 1e9, False),
        ([1.0, 2.0], [1.0, float("nan")], 1e9, False),
        ([float("inf")], [-float("inf")], 1e9, False),
        ([1.0, 2.5], [1.0, 2.0], 0.5, True),
        ([1.0, 2.5], [1.0, 2.0], 0.49, False),
        ([1.0, 2.0], [1.0, 2.0], float("nan"), True),
        ([True, False], [True, True], 0.0, False),
    ],
)
def test_what_agrees(result: list[Any], expected: list[Any], bound: float, agrees: bool) -> None:
    first, second = torch.tensor(result), torch.tensor(expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = checked("gm", 1, lambda: first, lambda: second, bound=lambda: bound)
    assert (got is first) is agrees
    assert (gpu_kernels.off == {}) is agrees


def test_an_error_of_a_kernel_is_no_error_of_the_run_but_memory_is() -> None:
    def raises(error: Exception) -> Any:
        raise error

    one = torch.ones(1)
    error = type("OutOfResources", (Exception,), {})("out of resource: shared memory\nReduce")
    with pytest.warns(UserWarning, match="OutOfResources: out of resource: shared memory"):
        assert checked("gm", 1, lambda: raises(error), lambda: one) is one
    with pytest.raises(torch.OutOfMemoryError):
        checked("mean", 1, lambda: raises(torch.OutOfMemoryError()), lambda: one)
    # the kernel needs less memory than torch
    assert checked("mean", 1, lambda: one, lambda: raises(torch.OutOfMemoryError())) is one
    with (
        pytest.warns(UserWarning, match="norm"),
        pytest.raises(KernelOffError),
    ):
        checked("norm", 1, lambda: raises(error), gpu_kernels.refuse, compared=lambda _: [])
    assert set(gpu_kernels.off) == {"gm", "norm"}


def test_nothing_is_compared_while_the_host_may_not_wait() -> None:
    right, fast = torch.zeros(1), torch.zeros(1)
    with gpu_kernels.unchecked():
        assert checked("mean", 1, lambda: fast, lambda: right) is right
        with pytest.raises(KernelOffError):
            checked("norm", 1, lambda: fast, gpu_kernels.refuse)
    assert checked("mean", 1, lambda: fast, lambda: right) is fast
    with gpu_kernels.unchecked():
        assert checked("mean", 1, lambda: fast, lambda: right) is fast
    assert gpu_kernels.off == {}


class Trials:
    """Programs in the place of the trial."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._program, self._notes = folder / "program.py", folder / "notes"
        monkeypatch.setattr(gpu_kernels, "TRIAL", f"exec(open({str(self._program)!r}).read())")

    def be(self, text: str) -> None:
        """Set the program."""
        self._program.write_text(f"open({str(self._notes)!r}, 'a').write('x')\n{text}")

    def count(self) -> int:
        """Return how often a program has run."""
        return len(self._notes.read_text()) if self._notes.exists() else 0


@pytest.fixture
def tried(gpu: FakeGPU, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    """Trials on a GPU that is not there."""
    monkeypatch.setattr(gpu_kernels, "trial", TRIAL)
    monkeypatch.setattr(gpu_kernels, "cache_folder", lambda: tmp_path / "cache")
    return Trials(tmp_path, monkeypatch)


SAY = "import json\nfor name in {names}: print(json.dumps({{name: {why!r}}}), flush=True)\n"


@pytest.mark.parametrize(
    ("text", "expected", "times"),
    [
        (SAY.format(names=KERNELS, why=""), dict.fromkeys(KERNELS, ""), 1),
        (SAY.format(names=KERNELS, why="bad"), dict.fromkeys(KERNELS, "bad"), 1),
        (
            SAY.format(names=KERNELS[:2], why="") + "import os; os._exit(11)",
            dict.fromkeys(KERNELS, "its trial ended with code 11") | dict.fromkeys(KERNELS[:2], ""),
            1,
        ),
        (
            SAY.format(names=KERNELS[:1], why="") + "import time; time.sleep(100)",
            dict.fromkeys(KERNELS, "its trial ended after 5 s") | {KERNELS[0]: ""},
            1,
        ),
        ("raise RuntimeError('CUDA-capable device(s) is/are busy')", {}, 2),
        (SAY.format(names=KERNELS[:1], why="") + "import os; os.kill(os.getpid(), 9)", {}, 2),
    ],
    ids=["well", "wrong", "dies", "hangs", "no GPU", "killed"],
)
def test_the_outcome_of_a_trial_is_kept(
    text: str, expected: dict[str, str], times: int, tried: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not if the trial could not begin, or was killed."""
    monkeypatch.setattr(gpu_kernels, "TRIAL_SECONDS", 5.0 if "sleep" in text else 100.0)
    tried.be(text)
    assert gpu_kernels.trial(GPU) == expected
    assert gpu_kernels.trial(GPU) == expected
    assert tried.count() == times


def test_another_gpu_driver_or_version_is_tried_again(
    tried: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton

    tried.be(SAY.format(names=KERNELS, why=""))
    (tmp_path / "driver").write_text("550.54")
    monkeypatch.setattr(gpu_kernels, "DRIVER", tmp_path / "none")
    for count, change in enumerate(
        (
            lambda: None,
            lambda: monkeypatch.setattr(gpu_kernels, "DRIVER", tmp_path / "driver"),
            lambda: (tmp_path / "driver").write_text("580.1"),
            lambda: monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GT 1030"),
            lambda: monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (6, 1)),
            lambda: monkeypatch.setattr(triton, "__version__", "9.9"),
            lambda: monkeypatch.setattr(torch, "__version__", "9.9"),
        ),
        1,
    ):
        change()
        gpu_kernels.trial(GPU)
        gpu_kernels.trial(GPU)
        assert tried.count() == count


def _try(_: int) -> dict[str, str]:
    return gpu_kernels.trial(GPU)


def test_processes_wait_for_one_trial(tried: Trials) -> None:
    tried.be("import time; time.sleep(2)\n" + SAY.format(names=KERNELS, why=""))
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(_try, range(3)) == [dict.fromkeys(KERNELS, "")] * 3
    assert tried.count() == 1


def test_a_folder_that_cannot_be_written(tried: Trials, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    tried.be(SAY.format(names=KERNELS, why="bad"))
    assert gpu_kernels.trial(GPU) == dict.fromkeys(KERNELS, "bad")


@pytest.mark.thorough
def test_a_run_names_the_kernels_that_are_off(gpu: FakeGPU) -> None:
    gpu_kernels.off["order"] = "a result of shape [17, 9] differs from torch's by 3e-02"
    line = f"without Triton's kernel order on this GPU: {gpu_kernels.off['order']}"
    with gpu.allowed():
        assert started("auto")["compile"] == f"triton; {line}"
        assert started("off")["compile"] == "off"
    launched = {name for name in gpu.counted() if name.startswith("triton::")}
    assert launched
    assert "triton::order" not in launched
