"""Batch norm joined with the ReLU before it, and dropout by seeds: the gradients of the layers as
they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dynabro_cli.gradients.engine import SHARED, WorkerGradients
from dynabro_cli.gradients.kernels.fusible import Functions
from dynabro_cli.gradients.layers.twin import join
from tests.tables import each_row

WORKERS, BATCHES, SIZE = 3, 2, 4


def network(affine: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(2, 3, 3),
        nn.ReLU(),
        nn.BatchNorm2d(3, affine=affine),
        nn.Dropout(0.3),
        nn.Conv2d(3, 4, 3),
    )
    return nn.Sequential(
        *layers,
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 5),
        nn.ReLU(),
        nn.Dropout(0.5),
    )


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


@each_row(
    ("affine", "value", "precision"),
    [
        (True, None, torch.float32),
        (False, None, torch.float32),
        (True, None, torch.bfloat16),
        (True, torch.nan, torch.float32),
        (True, torch.inf, torch.float32),
    ],
)
def test_a_relu_that_is_joined_computes_the_same(
    affine: bool, value: float | None, precision: torch.dtype
) -> None:
    plain, joined = (WorkerGradients(network(affine), WORKERS, dtype=precision) for _ in range(2))
    join(joined._twin)  # type: ignore[arg-type]
    assert sum(type(layer) is nn.ReLU for layer in joined._twin.modules()) == 2  # type: ignore[union-attr]
    for found, expected in zip(computed(joined, value), computed(plain, value), strict=True):
        assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))


def test_dropout_by_seeds_scales_what_it_keeps() -> None:
    functions, x = Functions(), torch.ones(6, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    out, dropped = functions.drop(x, torch.tensor([1, 2]), 5, 0.25)
    assert torch.equal(out, torch.where(dropped, 0, 1 / 0.75))
    assert torch.equal(functions.drop_backward(x, dropped, 5, 0.25), out)
    assert 0.2 < dropped.float().mean() < 0.3
    assert torch.equal(functions.drop(x[3:], torch.tensor([2]), 5, 0.25)[1], dropped[3:])
