"""Captures of kernels: torch's rules for streams, pools and graphs are kept from one run of a
process to the next.
"""

from __future__ import annotations

import gc

import pytest
import torch

from dynabro_cli.gradients.graphs import WARM_UPS, KernelCapture
from tests.gradients.scripted_cuda import ScriptedCuda, cuda

__all__ = ["cuda"]
ONE = torch.device("cuda:1")


@pytest.fixture(autouse=True)
def _no_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelCapture, "failed", 0)


def once(scripted: ScriptedCuda, capture: KernelCapture) -> None:
    start, _ = capture(scripted.computed(lambda: torch.zeros(1)))
    start()


def test_the_second_run_of_a_process_is_captured_as_the_first_one(cuda: ScriptedCuda) -> None:
    for _ in range(3):
        capture = KernelCapture(ONE)
        for _ in range(2):
            once(cuda, capture)
        del capture
        gc.collect()
    assert KernelCapture.failed == 0


def test_the_runs_before_a_capture_are_on_its_stream_which_all_shapes_share(
    cuda: ScriptedCuda,
) -> None:
    capture = KernelCapture(ONE)
    for _ in range(2):
        once(cuda, capture)
    assert cuda.log == ["wait", *["side"] * WARM_UPS, "wait", "captured"] * 2
    assert cuda.current is cuda.main
    assert next(cuda._workspaces) == 2  # one has been made before, for all of it


def test_the_gpu_of_the_run_is_the_current_one(cuda: ScriptedCuda) -> None:
    once(cuda, KernelCapture(ONE))
    assert cuda.entered == [ONE]


def test_a_capture_that_fails_leaves_the_stream_and_the_next_one_takes_another_pool(
    cuda: ScriptedCuda,
) -> None:
    capture = KernelCapture(ONE)
    once(cuda, capture)
    cuda.fails = True
    with pytest.raises(RuntimeError, match="operation failed"):
        once(cuda, capture)
    assert cuda.current is cuda.main
    cuda.fails = False
    once(cuda, capture)
    assert [pool.graphs for pool in cuda._pools.values()] == [1, 1]
    assert KernelCapture.failed == 1


def test_what_fails_before_the_capture_has_begun_does_no_harm(cuda: ScriptedCuda) -> None:
    def short() -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    capture = KernelCapture(ONE)
    with pytest.raises(torch.OutOfMemoryError):
        capture(short)
    assert cuda.current is cuda.main
    assert KernelCapture.failed == 0
    once(cuda, capture)


def test_a_function_that_waits_is_found_before_its_capture(cuda: ScriptedCuda) -> None:
    """On a GPU, torch raises if the host waits in this mode; a failed capture would end the
    process.
    """
    modes: list[int | str] = []
    capture = KernelCapture(ONE)
    capture(lambda: modes.append(cuda.debugs))
    assert modes == ["error"] * WARM_UPS + [0]


def test_a_graph_that_is_not_used_does_not_take_the_workspace_of_the_others(
    cuda: ScriptedCuda,
) -> None:
    capture = KernelCapture(ONE)
    start, _ = capture(cuda.computed(lambda: torch.zeros(1)))
    capture(cuda.computed(lambda: torch.zeros(1)))  # dropped at once
    gc.collect()
    start()
