"""In what precision gradients are computed."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dynabro_cli import RunSpec, simulate
from dynabro_cli.core.errors import SpecError
from dynabro_cli.simulation import setup
from dynabro_cli.simulation.precision import OVERRIDE, apply, check

BACKENDS: Any = torch.backends
CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch's switches as every run leaves them by default; there is a new GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    yield
    BACKENDS.fp32_precision = BACKENDS.cudnn.fp32_precision = BACKENDS.mkldnn.fp32_precision = (
        "none"
    )
    apply("fp32", CPU)


def switches() -> dict[str, Any]:
    """All that decides in what a matrix product or a convolution of float32 is computed; old and
    new must agree.
    """
    return {
        "matmul": BACKENDS.cuda.matmul.fp32_precision,
        "conv": BACKENDS.cudnn.conv.fp32_precision,
        "rnn": BACKENDS.cudnn.rnn.fp32_precision,
        "old": (
            BACKENDS.cuda.matmul.allow_tf32,
            BACKENDS.cudnn.allow_tf32,
            torch.get_float32_matmul_precision(),
        ),
    }


FULL = {"matmul": "ieee", "conv": "ieee", "rnn": "ieee", "old": (False, False, "highest")}
TF32 = {"matmul": "tf32", "conv": "tf32", "rnn": "tf32", "old": (True, True, "high")}
LEGAL = [
    ("fp32", CPU, torch.float32, FULL),
    ("fp32", CUDA, torch.float32, FULL),
    ("tf32", CUDA, torch.float32, TF32),
    ("bf16", CPU, torch.bfloat16, FULL),
    ("bf16", CUDA, torch.bfloat16, FULL),
]


@pytest.mark.parametrize(("precision", "device", "dtype", "expected"), LEGAL)
def test_switches_and_dtype(
    precision: str, device: torch.device, dtype: torch.dtype, expected: dict[str, Any]
) -> None:
    for before in ("fp32", "tf32", "bf16"):
        apply(before, CUDA)
        assert apply(precision, device) == dtype
        assert switches() == expected


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
@pytest.mark.parametrize(
    ("capability", "legal"), [((8, 0), True), ((7, 5), False), ((6, 1), False)]
)
def test_an_old_gpu_has_one_precision(
    precision: str, capability: tuple[int, int], legal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    check("fp32", "cuda:1")
    refused = pytest.raises(SpecError, match=rf"^precision={precision} is not legal on cuda:1: it")
    with contextlib.nullcontext() if legal else refused:
        check(precision, "cuda:1")


def test_a_variable_of_the_environment_does_not_change_the_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(OVERRIDE, "1")
    apply("fp32", CPU)
    assert os.environ[OVERRIDE] == "1"
    with pytest.warns(UserWarning, match="NVIDIA_TF32_OVERRIDE is ignored: --precision fp32"):
        apply("fp32", CUDA)
    assert OVERRIDE not in os.environ


def as_torch_begins() -> None:
    BACKENDS.cudnn.allow_tf32 = True


def by_the_old_switches() -> None:
    torch.set_float32_matmul_precision("medium")


def by_the_new_switches() -> None:
    BACKENDS.cuda.matmul.fp32_precision = BACKENDS.cudnn.conv.fp32_precision = (
        BACKENDS.mkldnn.conv.fp32_precision
    ) = "tf32"


def for_all_at_once() -> None:
    BACKENDS.fp32_precision = BACKENDS.cudnn.fp32_precision = "tf32"


@pytest.mark.parametrize(
    "leave", [as_torch_begins, by_the_old_switches, by_the_new_switches, for_all_at_once]
)
def test_full_precision_whatever_was_set_before(leave: Callable[[], None]) -> None:
    for precision in ("fp32", "bf16"):
        leave()
        apply(precision, CPU)
        assert switches() == FULL
        assert (BACKENDS.mkldnn.matmul.fp32_precision, BACKENDS.mkldnn.conv.fp32_precision) == (
            "ieee",
            "ieee",
        )


def test_tensor_float_is_of_gpus() -> None:
    line = (
        "precision=tf32 is not legal on device cpu: only CUDA GPUs have TensorFloat-32. "
        "Try: --precision fp32 or bf16"
    )
    before = switches()
    with pytest.raises(SpecError) as caught:
        apply("tf32", CPU)
    assert caught.value.problems == [line]
    assert switches() == before
    # before the first event, and so before anything is stored
    with pytest.raises(SpecError) as caught:
        simulate(RunSpec(precision="tf32"), device="cpu")
    assert caught.value.problems == [line]


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_a_run_sets_its_precision_before_its_network_is_built(
    precision: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = setup.ImageProblem

    def build(*arguments: Any, **options: Any) -> Any:
        given = inspect.signature(real).bind(*arguments, **options).arguments
        seen.append((switches(), given["dtype"]))
        return real(*arguments, **options)

    monkeypatch.setattr(setup, "ImageProblem", build)
    stream = simulate(RunSpec(model="logistic", budget=1, precision=precision), device="cpu")
    apply("tf32", CUDA)  # what another run leaves that is prepared in between
    started = next(stream)
    assert seen == [(FULL, dtype)]
    assert started.record["precision"] == precision  # type: ignore[union-attr]
