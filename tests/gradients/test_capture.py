"""Captures of kernels: torch's rules for streams, pools and graphs are kept from one run of a
process to the next.
"""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dynabro_cli.core.machine import devices
from dynabro_cli.gradients import graphs
from dynabro_cli.gradients.graphs import WARM_UPS, Graphed, KernelCapture
from tests.gradients.scripted_cuda import Clock, ScriptedCuda, cuda

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
    assert cuda.log == ["wait", "wait"]  # also for the kernels before the error
    assert KernelCapture.failed == 0
    once(cuda, capture)


@pytest.mark.parametrize("broken", [None, "warm-up", "second warm-up"])
def test_no_stream_writes_what_another_one_uses(
    broken: str | None, cuda: ScriptedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel of the fake takes until somebody waits for its stream."""
    monkeypatch.setattr(graphs, "EAGER", 1)
    x, parts, sides = torch.zeros(3), torch.zeros(2, 3), list[int]()

    def update(inputs: Any, state: Any) -> tuple[torch.Tensor, ...]:
        parts.copy_(x + 1)
        if cuda.current is not cuda.main:
            sides.append(1)
            if broken is not None and len(sides) == (1 if broken == "warm-up" else 2):
                raise RuntimeError("the host waits for the GPU")
        x.add_(parts.sum(0))
        return (x.sum(),)

    graphed = Graphed(update, [x, parts], (), torch.device("cpu"), 0.0, KernelCapture(ONE))
    with Clock(cuda):
        for _ in range(4 if broken else 2):
            graphed((torch.zeros(1),), SimpleNamespace())
    if broken:
        assert x.tolist() == [2.0 * (3**4 - 1) / 2] * 3
        assert graphed.state == "off: RuntimeError: the host waits for the GPU (1)"


def test_after_a_failed_capture_no_other_is_tried(
    cuda: ScriptedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "EAGER", 0)
    cuda.fails = True
    run = cuda.computed(lambda: torch.zeros(()))
    graphed = Graphed(
        lambda inputs, state: (run(),), [], (), torch.device("cpu"), 0.0, KernelCapture(ONE)
    )
    for form in range(3):
        graphed((form, torch.zeros(1)), SimpleNamespace())
    assert cuda.log.count("captured") == 1
    assert "a capture has failed in this process (2)" in graphed.state
    assert devices.spoilt("cuda:0")


def test_a_run_has_a_limited_number_of_graphs(
    cuda: ScriptedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "EAGER", 0)
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    graphed = Graphed(
        lambda inputs, state: (torch.zeros(()),),
        [],
        (),
        torch.device("cpu"),
        0.0,
        KernelCapture(ONE),
    )
    for form in (0, 1, 2, 3, 0):
        graphed((form, torch.zeros(1)), SimpleNamespace())
    assert graphed.state == "on: 2 forms, 3 replays; eager: 2 graphs (2)"


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
