"""Convolutions with ReLU and pooling, on one channel and on several, worker by worker."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dynabro_cli.gradients.engine import SHARED
from tests.gradients.worker_by_worker import CLASSES, batch_of, check, seeded
from tests.tables import each_row


def network(
    size: tuple[int, int],
    channels: int = 3,
    kernel: int = 3,
    padding: int = 1,
    *,
    bias: bool = True,
) -> nn.Module:
    """Convolution, ReLU and max-pooling on one channel, and a linear layer."""
    side = 2 * padding - kernel + 1
    width = channels * ((size[0] + side) // 2) * ((size[1] + side) // 2)
    convolution = nn.Conv2d(1, channels, kernel, padding=padding, bias=bias)
    return nn.Sequential(
        convolution, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(width, CLASSES)
    )


@pytest.mark.thorough
@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    workers=st.integers(1, 4),
    samples=st.integers(1, 3),
    batches=st.integers(1, 2),
    half=st.tuples(st.integers(3, 5), st.integers(3, 5)),
    channels=st.integers(1, 4),
    kernel=st.sampled_from([1, 3, 5]),
    padding=st.integers(0, 2),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_gradients(
    workers: int,
    samples: int,
    batches: int,
    half: tuple[int, int],
    channels: int,
    kernel: int,
    padding: int,
    bias: bool,
    seed: int,
) -> None:
    size = 2 * half[0], 2 * half[1]
    inputs, labels = batch_of(workers, samples * batches, (1, *size), seed)
    check(
        seeded(lambda: network(size, channels, kernel, padding, bias=bias), seed),
        inputs,
        labels,
        batches,
        SHARED,
    )


def test_of_equal_values_the_first_is_the_largest() -> None:
    """Images of few grey levels, with flat parts: the windows are full of ties, which must go as in
    ``max_pool2d``.
    """
    inputs, labels = batch_of(3, 4, (1, 8, 8))
    inputs = (inputs > 1).double()
    assert 0.1 < float(inputs.mean()) < 0.3
    model = seeded(lambda: network((8, 8)))
    # positive where the image is empty, so that ties are not cut off by the ReLU
    model[0].bias.data.abs_()
    check(model, inputs, labels, 1, SHARED)


@each_row(
    ("build", "shape"),
    [
        (lambda: network((7, 8)), (1, 7, 8)),
        (lambda: network((8, 7)), (1, 8, 7)),
        (lambda: network((8, 8), kernel=2, padding=0), (1, 8, 8)),
        (
            lambda: nn.Sequential(
                nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 5)
            ),
            (2, 8, 8),
        ),
        (
            lambda: nn.Sequential(
                nn.Conv2d(1, 3, 3, stride=2),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(3, 5),
            ),
            (1, 6, 6),
        ),
        (
            lambda: nn.Sequential(
                nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(12, 5)
            ),
            (1, 8, 8),
        ),
        (
            lambda: nn.Sequential(
                nn.Conv2d(1, 3, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 5)
            ),
            (1, 8, 8),
        ),
        (
            lambda: nn.Sequential(
                nn.Conv2d(1, 3, (3, 1)), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
            ),
            (1, 8, 8),
        ),
    ],
    ids=[
        "odd height",
        "odd width",
        "even kernel",
        "two channels",
        "stride",
        "pool by three",
        "tanh",
        "oblong kernel",
    ],
)
def test_other_layers(build: object, shape: tuple[int, ...]) -> None:
    inputs, labels = batch_of(2, 2, shape)
    check(seeded(build), inputs, labels, 1, SHARED)


def test_a_convolution_on_one_channel_deeper_in_a_network() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Tanh(), *network((8, 8)))

    inputs, labels = batch_of(2, 2, (1, 8, 8))
    check(seeded(build), inputs, labels, 1, SHARED)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, stride=1, padding=1)])
def test_pooling_before_a_relu_is_the_same(pool: nn.Module) -> None:
    """The order of ReLU and pooling is turned round behind any convolution, with the same
    gradients.
    """

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(CLASSES)
        )

    inputs, labels = batch_of(3, 2, (2, 8, 8))
    model = seeded(build)
    with torch.no_grad():
        model(inputs[0].float())
    check(model, (inputs > 1).double(), labels, 1, SHARED)
