"""The first run on a GPU, as a user sees it: lines of torch in the log, and kernels
that take long to compile.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from benchmarks.fake_gpu import FakeGPU, on_gpu
from dynabro_cli import RunSpec
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.gradients import graphs
from dynabro_cli.simulation.setup import simulate_run
from dynabro_cli.testing._rules import made

pytest.importorskip("triton")

DETERMINISTIC = (
    "max_pool2d_with_indices_backward_cuda does not have a deterministic implementation, but you "
    "set 'torch.use_deterministic_algorithms(True, warn_only=True)'. You can file an issue"
)
"""A line that torch 2.11 prints for each backward pass of max-pooling."""
PROTOTYPE = (
    "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing "
    "operations"
)
OTHER = "the user's own model warns"


def said(shown: list[warnings.WarningMessage]) -> list[str]:
    return [str(warning.message) for warning in shown]


def test_torch_does_not_warn_of_passes_that_are_repeated_bit_for_bit_anyway(gpu: FakeGPU) -> None:
    spec = RunSpec(task="digits", model="logistic", workers=3, byzantine=1, budget=2)
    with warnings.catch_warnings(record=True) as shown, gpu.allowed():
        warnings.simplefilter("always")
        next(simulate_run(resolve(spec), device="cuda"))
        for text in (DETERMINISTIC, OTHER):
            warnings.warn(text, UserWarning, stacklevel=1)
    assert OTHER in said(shown)
    assert DETERMINISTIC not in said(shown)


def test_torch_does_not_warn_of_the_search_for_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = list[str]()

    def set_mode(mode: str) -> None:
        modes.append(mode)
        if mode == "error":
            warnings.warn(PROTOTYPE, UserWarning, stacklevel=1)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: "default")
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        graphs._without_waiting(lambda: warnings.warn(OTHER, UserWarning, stacklevel=1))
    assert modes == ["error", "default"]
    assert said(shown) == [OTHER]


@pytest.mark.parametrize("rule", ["cwtm", "cwmed", "meamed", "phocas"])
@pytest.mark.parametrize(("workers", "kernel"), [(5, True), (32, True), (33, False), (64, False)])
def test_sorting_networks_of_many_workers_are_not_compiled(
    workers: int, kernel: bool, rule: str, gpu: FakeGPU
) -> None:
    """A network of 64 rows takes half a minute to compile, in each new form."""
    with gpu.allowed():
        messages = on_gpu(torch.randn(workers, 7))
        result = made(rule, workers=workers, byzantine=workers // 4)(messages)
    assert result.device.type == "cuda"
    assert ("triton::order" in gpu.counted()) is kernel
