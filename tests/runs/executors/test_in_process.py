"""Runs in this process, which cannot be replaced after an error of the GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.fake_gpu import FakeGPU, one_gpu
from dynabro_cli import RunSpec, simulate
from dynabro_cli.core.errors import RunError
from dynabro_cli.core.events import Event
from dynabro_cli.gradients.graphs import KernelCapture
from dynabro_cli.runs.executors._api import ON_CPU, Options, Sharing
from dynabro_cli.runs.executors.backend import Places
from dynabro_cli.runs.executors.backends.local.in_process import InProcess
from dynabro_cli.runs.store.open.engine import open_for_writing
from tests.runs.executors.made_runs import Log, execute_all, quadratic
from tests.runs.store.made import evaluated, finished, read, rounds, started


class Gpu:
    """A GPU that an error of the second run leaves unusable."""

    def __init__(self) -> None:
        self.broken = False
        self.made = list[int]()

    def synchronize(self, _: object = None) -> None:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def simulate(self, request: Any, _: object) -> Iterator[Event]:
        seed = request.spec["seed"]
        self.made.append(seed)
        yield started(request.key, **request.spec)
        if seed == 1:
            self.broken = True
            self.synchronize()
        yield rounds(0, 19)
        yield evaluated(20)
        yield finished(20)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    return made


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_after_an_error_that_stays_no_other_run_is_tried(
    device: str, gpu: Gpu, tmp_path: Path
) -> None:
    backend = InProcess()
    backend._simulate = gpu.simulate
    sharing = Sharing(True) if device == "cuda:0" else ON_CPU
    options = Options(jobs=1, threads=1, device=device)
    places = Places(options, [device], 1, backend, sharing=lambda _: sharing)
    path = tmp_path / "results.db"
    refused = pytest.raises(RunError, match=r"^device=cuda:0: this process cannot use the GPU any")
    with refused if device == "cuda:0" else contextlib.nullcontext():
        execute_all(
            [quadratic(seed) for seed in range(5)],
            open_for_writing(str(path)),
            Options(jobs=0, device="cpu"),
            Log(),
            opened=contextlib.nullcontext(lambda _: places),
        )
    ends = ["finished", "failed"] + ["finished"] * (3 * (device == "cpu"))
    assert read(path, "SELECT status FROM runs ORDER BY seed") == [(end,) for end in ends]
    assert gpu.made == list(range(len(ends)))


SPEC = RunSpec(task="digits", model="logistic", budget=2, workers=3, byzantine=1)


@pytest.fixture
def there() -> Iterator[FakeGPU]:
    with one_gpu() as found:
        yield found


@pytest.mark.parametrize("why", ["error", "capture"])
def test_simulate_refuses_a_process_that_cannot_go_on(
    why: str, there: FakeGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimpleNamespace(broken=why == "error")
    if why == "error":
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _: Gpu.synchronize(gpu))  # type: ignore[arg-type]
    else:
        monkeypatch.setattr(KernelCapture, "failed", 1)
    with pytest.raises(RunError, match=r"in a notebook, restart the kernel first$"):
        simulate(SPEC, device="cuda", force=True)
    with there.allowed():
        next(simulate(SPEC, device="cpu", force=True))
