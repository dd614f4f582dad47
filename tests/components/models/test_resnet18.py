"""ResNet-18: its shapes, its equation, and one worker's gradients apart from another's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dynabro_cli.components.models._api import REGISTRY
from dynabro_cli.components.models._residual import Block
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.gradients.engine import SHARED, WorkerGradients
from tests.gradients.worker_by_worker import batch_of, check, registered

CIFAR = ImageShape(3, 32, 32, 10)
BOTH = ["resnet18", "resnet18:norm=batch"]


@pytest.mark.parametrize("text", BOTH)
def test_shapes_of_the_stages(text: str) -> None:
    """Nothing is halved before the second stage: 32, 32, 16, 8 and 4 pixels."""
    model, seen = REGISTRY.parse(text).build(CIFAR), []
    for module in model:
        module.register_forward_hook(
            lambda _module, _inputs, output: seen.append(tuple(output.shape[1:]))
        )
    model(torch.randn(2, 3, 32, 32))
    stages = [(64, 32, 32)] * 2 + [(128, 16, 16)] * 2 + [(256, 8, 8)] * 2 + [(512, 4, 4)] * 2
    assert seen == [(64, 32, 32)] * 3 + stages + [(512,), (10,)]


def test_eighteen_layers() -> None:
    model = REGISTRY.parse("resnet18").build(CIFAR)
    weighted = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and "shortcut" not in name
    ]
    assert len(weighted) == 18
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    batch = REGISTRY.parse("resnet18:norm=batch").build(CIFAR)
    assert not any(isinstance(module, nn.GroupNorm) for module in batch.modules())


@pytest.mark.parametrize(("inputs", "stride"), [(32, 1), (64, 1), (32, 2)])
def test_a_block_is_the_equation(inputs: int, stride: int) -> None:
    """y = relu(N(W2 relu(N(W1 x))) + s(x)), with s the identity where the shape stays."""
    block = Block(inputs, 64, stride, "batch").double()
    x = torch.randn(3, inputs, 6, 6, dtype=torch.float64)

    def norm(values: torch.Tensor) -> torch.Tensor:
        mean, variance = (
            values.mean((0, 2, 3), keepdim=True),
            values.var((0, 2, 3), correction=0, keepdim=True),
        )
        return (values - mean) / (variance + 1e-5).sqrt()

    first, second = (layer.weight for layer in block.residual if isinstance(layer, nn.Conv2d))
    inner = norm(F.conv2d(x, first, stride=stride, padding=1)).relu()
    shortcut = x if inputs == 64 else norm(F.conv2d(x, block.shortcut[0].weight, stride=stride))  # type: ignore[index]
    expected = (norm(F.conv2d(inner, second, padding=1)) + shortcut).relu()
    torch.testing.assert_close(block(x), expected)


@pytest.mark.thorough
@pytest.mark.parametrize("text", BOTH)
def test_gradients_of_the_shared_pass_are_those_of_a_plain_loop(text: str) -> None:
    inputs, labels = batch_of(2, 4, (3, 16, 16))
    check(registered(text), inputs, labels, 2, SHARED)


def test_group_norm_has_no_statistics() -> None:
    assert WorkerGradients(REGISTRY.parse("resnet18").build(CIFAR), 1).buffers.numel() == 0
    assert (
        WorkerGradients(REGISTRY.parse("resnet18:norm=batch").build(CIFAR), 1).buffers.numel()
        == 9_600
    )
