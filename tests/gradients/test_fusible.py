"""Batch norm with the ReLU before it, and dropout, joined and compiled: the gradients of the layers as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from benchmarks.fake_gpu import one_gpu
from dynabro_cli import RunSpec
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.gradients.engine import SHARED, WorkerGradients
from dynabro_cli.gradients.fusible import Functions
from dynabro_cli.simulation.compilation import Compiler
from dynabro_cli.simulation.setup import simulate_run

WORKERS, BATCHES, SIZE = 3, 2, 4


def network(affine: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 3, 3), nn.ReLU(), nn.BatchNorm2d(3, affine=affine), nn.Dropout(0.3), nn.Conv2d(3, 4, 3)
    return nn.Sequential(*layers, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Dropout(0.5))


def computed(engine: WorkerGradients, value: float | None = None) -> list[Tensor]:
    """Return losses, gradients and statistics of a pass, and logits."""
    source = torch.Generator().manual_seed(1)
    inputs = torch.randn(WORKERS, BATCHES * SIZE, 2, 8, 8, generator=source)
    if value is not None:
        inputs[0, 0, 0, 0, 0] = value
    labels = torch.randint(5, (WORKERS, BATCHES * SIZE), generator=source)
    losses = engine(inputs, labels, BATCHES, torch.arange(WORKERS * BATCHES))
    assert engine.kind == SHARED
    return [losses, engine.matrix.clone(), engine.statistics.clone(), engine.logits(inputs[1])]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("value", [None, torch.nan, torch.inf])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_relu_that_is_joined_computes_the_same(affine: bool, value: float | None, precision: torch.dtype) -> None:
    plain, joined = (WorkerGradients(network(affine), WORKERS, dtype=precision) for _ in range(2))
    joined.fuse(lambda function: function)
    assert sum(type(layer) is nn.ReLU for layer in joined._twin.modules()) == 2  # type: ignore[union-attr]
    for found, expected in zip(computed(joined, value), computed(plain, value), strict=True):
        assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))


def fused(engine: WorkerGradients, **options: Any) -> list[list[Tensor]]:
    torch.compiler.reset()
    engine.fuse(lambda function: torch.compile(function, fullgraph=True, **options))
    found = [computed(engine), computed(engine)]
    torch.compiler.reset()
    return found


@pytest.mark.parametrize(
    ("backend", "precision"),
    [
        ("eager", torch.float32),
        pytest.param("eager", torch.bfloat16, marks=pytest.mark.thorough),
        pytest.param("inductor", torch.float32, marks=pytest.mark.thorough),
        pytest.param("inductor", torch.bfloat16, marks=pytest.mark.slow),
    ],
    ids=["as one graph", "as one graph, in half precision", "compiled", "compiled, in half precision"],
)
def test_each_function_can_be_compiled(backend: str, precision: torch.dtype) -> None:
    expected = computed(WorkerGradients(network(), WORKERS, dtype=precision))
    for found in fused(WorkerGradients(network(), WORKERS, dtype=precision), backend=backend):
        for ours, theirs in zip(found, expected, strict=True):
            limits: dict[str, Any] = (
                {"rtol": 1e-4, "atol": 1e-5} if precision == torch.float32 else {"rtol": 0.05, "atol": 0.01}
            )
            torch.testing.assert_close(ours, theirs, **limits)


def test_dropout_by_seeds_scales_what_it_keeps() -> None:
    functions, x = Functions(), torch.ones(6, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    out, dropped = functions.drop(x, torch.tensor([1, 2]), 5, 0.25)
    assert torch.equal(out, torch.where(dropped, 0, 1 / 0.75))
    assert torch.equal(functions.drop_backward(x, dropped, 0.25), out)
    assert 0.2 < dropped.float().mean() < 0.3
    assert torch.equal(functions.drop(x[3:], torch.tensor([2]), 5, 0.25)[1], dropped[3:])


@pytest.mark.parametrize(
    ("choice", "names"), [("on", set(Functions._fields)), pytest.param("off", set(), marks=pytest.mark.thorough)]
)
def test_a_run_on_a_gpu_compiles_its_layers(choice: str, names: set[str]) -> None:
    pytest.importorskip("triton")
    asked: set[str] = set()

    def remember(_: Compiler, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        if function.__name__ in Functions._fields:
            asked.add(function.__name__)
            assert options == {"dynamic": None}
        return function

    more: dict[str, Any] = {"workers": 3, "byzantine": 1, "batch_size": 2, "budget": 2, "eval_every": 2}
    spec = resolve(RunSpec(task="digits", model="cnn-cifar:width=0.1", method="sgd", aggregator="cwtm", attack="sf", **more))
    with one_gpu() as gpu, gpu.allowed(), mock.patch.object(Compiler, "__call__", remember):
        list(simulate_run(spec, device="cuda", compile=choice))
    assert asked == names
