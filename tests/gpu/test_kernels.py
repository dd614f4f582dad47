"""Kernels for a GPU: right in Triton's interpreter, built for its architectures, and not used if
they cannot be launched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.fake_gpu import FakeGPU, on_gpu, one_gpu
from dynabro_cli import RunSpec
from dynabro_cli.core import events
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.machine import gpu_kernels
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.setup import simulate_run
from dynabro_cli.testing._rules import made

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
OBSTACLE = gpu_kernels.obstacle.__wrapped__
NO_COMPILER = (
    "RuntimeError: Failed to find C compiler. Please specify via CC environment "
    "variable or set triton.knobs.build.impl."
)


def kernels(*arguments: str, **environment: str) -> list[Any]:
    """Run ``tests.gpu.kernels``; return the objects that it prints."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.gpu.kernels", *arguments]
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("names", "cases"),
    [
        (("order", "engine"), 54 + 8),
        (("mean", "norm", "dropout"), 24 + 190 + 80),
        (("gm", "signguard"), 40 + 39),
    ],
)
def test_each_kernel_computes_what_it_replaces(names: tuple[str, ...], cases: int) -> None:
    """Equal bit for bit, or within a bound from the number of terms; see ``tests.gpu.kernels``."""
    (errors,) = kernels(*names, TRITON_INTERPRET="1")
    assert len(errors) == cases
    assert {case: error for case, error in errors.items() if not error <= 1} == {}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "architecture", [90, *(pytest.param(other, marks=pytest.mark.slow) for other in (80, 89, 120))]
)
@pytest.mark.parametrize(
    ("what", "most"),
    [
        (("order=17", "mean=17", "norm=64", "norm=1", "dropout=1", "gm=32", "signguard=32"), 128),
        pytest.param(("order=64",), 200, marks=pytest.mark.slow),
        pytest.param(("gm=64", "signguard=64"), 255, marks=pytest.mark.slow),
    ],
    ids=["usual", "order of 64", "gm of 64"],
)
def test_each_kernel_is_built(
    architecture: int, what: tuple[str, ...], most: int, tmp_path: Path
) -> None:
    """For the requested architecture only; nothing spills out of the registers, except the Gram
    matrix of 64 workers.
    """
    built = kernels(str(architecture), *what, TRITON_CACHE_DIR=str(tmp_path))
    assert {tuple(kernel["targets"]) for kernel in built} == {(f"sm_{architecture}",)}
    assert all(0 < kernel["REG"] <= most for kernel in built)
    assert what == ("gm=64", "signguard=64") or not any(kernel["STACK"] for kernel in built)


@pytest.fixture
def without_compiler(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> FakeGPU:
    """A launch fails as Triton's first does without a C compiler."""

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError(NO_COMPILER.removeprefix("RuntimeError: "))

    monkeypatch.setattr(gpu_kernels, "launch", fails)
    monkeypatch.setattr(gpu_kernels, "obstacle", OBSTACLE)
    return gpu


def test_what_keeps_triton_from_working(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = list[str]()
    with one_gpu():
        monkeypatch.setattr(
            gpu_kernels, "launch", lambda kernel, *_: launched.append(kernel.fn.__name__)
        )
        assert OBSTACLE(torch.device("cuda")) is None
        assert launched == ["nothing"]
        monkeypatch.setattr(gpu_kernels, "find_spec", lambda _: None)
        assert OBSTACLE(torch.device("cuda")) == "no triton"
    assert OBSTACLE(torch.device("cpu")) == "not a GPU"
    assert not gpu_kernels.triton_works("mean", torch.zeros(1))


@pytest.mark.parametrize("rule", ["cwtm", "gm", "meamed", "mean", "signguard"])
def test_rules_need_no_c_compiler_beside_a_gpu(rule: str, without_compiler: FakeGPU) -> None:
    with without_compiler.allowed():
        assert made(rule, workers=5, byzantine=1)(on_gpu(torch.randn(5, 7))).device.type == "cuda"


def started(compile_: str) -> dict[str, Any]:
    more: dict[str, Any] = {
        "workers": 3,
        "byzantine": 1,
        "batch_size": 2,
        "budget": 2,
        "eval_every": 2,
    }
    spec = resolve(
        RunSpec(
            task="digits",
            model="cnn-cifar:width=0.1",
            method="sgd",
            aggregator="cwtm",
            attack="sf",
            **more,
        )
    )
    first, *_ = simulate_run(spec, device="cuda", compile=compile_)
    assert isinstance(first, events.Started)
    found: dict[str, Any] = json.loads(str(first.record["versions"]))
    return found


LAYERS = {"moments", "normal", "sums", "input_gradient", "dropped"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("choice", "kernels", "says"),
    [("auto", LAYERS | {"order", "mean"}, "triton"), ("off", set(), "off")],
)
def test_a_run_on_a_gpu_uses_kernels_and_graphs_unless_it_is_told_not_to(
    choice: str, kernels: set[str], says: str, gpu: FakeGPU
) -> None:
    with gpu.allowed():
        versions = started(choice)
    assert versions["compile"] == says
    assert ("graphs" in versions) is (choice == "auto")
    launched = {
        name.removeprefix("triton::") for name in gpu.counted() if name.startswith("triton::")
    }
    assert launched == kernels


@pytest.mark.thorough
def test_a_run_beside_a_gpu_without_a_c_compiler(without_compiler: FakeGPU) -> None:
    with without_compiler.allowed():
        assert started("auto")["compile"] == f"off: {NO_COMPILER}"
        with pytest.raises(
            SpecError,
            match=r"compile=on needs Triton, which does not work here \(RuntimeError: Failed "
            r"to find C",
        ):
            started("on")
    assert not any(name.startswith("triton::") for name in without_compiler.counted())
