"""Every network, rule, pre-aggregator and attack on a GPU that is not there: right devices, and no
wait for the GPU.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor

from benchmarks.fake_gpu import FakeGPU, devices, on_gpu
from dynabro_cli.components.aggregators._subsets import subsets
from dynabro_cli.components.api import make_attack
from dynabro_cli.components.attacks._api import Defence, honest_mean
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.gradients.engine import SHARED, WorkerGradients
from dynabro_cli.testing._rules import made
from tests.contract.test_aggregators import RULES, STAGES
from tests.contract.test_attacks import TEXTS as ATTACKS

M, D = 17, 11
SLOW = dict.fromkeys(("resnet18", "gpt", "cnn-cifar"), pytest.mark.thorough)


def vectors() -> Tensor:
    return on_gpu(torch.randn(M, D, generator=torch.Generator().manual_seed(0)))


@pytest.mark.thorough
@pytest.mark.parametrize("text", [*RULES, *(f"{stage}+cwtm" for stage in STAGES)])
def test_rules(text: str, gpu: FakeGPU) -> None:
    rule = made(text.format(length=60, short=20), workers=M, byzantine=3)
    subsets.cache_clear()
    for call in range(3):
        with gpu.allowed() if not call else contextlib.nullcontext():  # tables are sent once
            found = rule(vectors())
        assert devices([found, rule._state]) == {"cuda"}
    subsets.cache_clear()


@pytest.mark.thorough
@pytest.mark.parametrize("text", ATTACKS)
def test_attacks(text: str, gpu: FakeGPU) -> None:
    attack = make_attack(text.replace("worker=8", "worker=16"), workers=M)
    byzantine = on_gpu(torch.arange(M) < 3)
    own, state = vectors(), dict(attack._attack.initial)
    seen = (
        (Defence(honest_mean(own, byzantine), lambda messages: messages.mean(0)),)
        if attack._attack.sees_defence
        else ()
    )
    for call in range(3):
        # the first state and tables are sent once
        with gpu.allowed() if not call else contextlib.nullcontext():
            assert devices(attack._attack.messages(own, byzantine, state, *seen)) == {"cuda"}
            if attack._attack.observe is not None:
                state = attack._attack.observe(own, byzantine, state)
            state = attack._attack.advance(byzantine, state)
    labels = attack.labels(on_gpu(torch.zeros(M, 4, dtype=torch.int64)), byzantine, 10)
    assert devices(labels) == {"cuda"}


@pytest.mark.parametrize(
    "precision", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=SLOW.get(name, ())) for name in REGISTRIES["models"].entries()],
)
def test_networks(name: str, precision: torch.dtype, gpu: FakeGPU) -> None:
    shape = ImageShape(1, 1, 16, 10) if name == "gpt" else ImageShape(3, 16, 16, 10)
    with gpu.allowed():
        model = REGISTRIES["models"].parse(name).build(shape).to("cuda")
    engine = WorkerGradients(model, 3, dtype=precision, kinds=(SHARED,), compile="on")
    inputs, labels = (
        torch.rand(3, 4, shape.channels, shape.height, shape.width),
        torch.zeros(3, 4, dtype=torch.int64),
    )
    losses = engine(on_gpu(inputs), on_gpu(labels), 2, range(6) if engine.random else ())
    assert losses.shape == (3,)
    assert devices(
        [losses, engine.matrix, engine.statistics, engine.buffers, engine.parameters]
    ) == {"cuda"}
    assert engine.matrix.dtype == torch.float32
    assert devices(engine.logits(on_gpu(inputs[0]))) == {"cuda"}


@pytest.mark.parametrize(
    "name", ["cnn-mnist", pytest.param("cnn-cifar", marks=pytest.mark.thorough), "mlp"]
)
def test_more_workers_are_not_more_operations(name: str, gpu: FakeGPU) -> None:
    """A pass launches as much for 25 workers as for 5."""
    launched = []
    for m in (5, 25):
        with gpu.allowed():
            model = REGISTRIES["models"].parse(name).build(ImageShape(3, 16, 16, 10)).to("cuda")
        engine = WorkerGradients(model, m, kinds=(SHARED,))
        inputs, labels = (
            on_gpu(torch.randn(m, 4, 3, 16, 16)),
            on_gpu(torch.zeros(m, 4, dtype=torch.int64)),
        )
        engine(inputs, labels, 1, range(m) if engine.random else ())  # finds out how to compute
        gpu.counted()
        engine(inputs, labels, 1, range(m) if engine.random else ())
        launched.append(gpu.counted())
    assert sum(launched[0].values()) > 20
    assert launched[0] == launched[1]
