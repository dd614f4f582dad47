"""A small CNN for small images."""

from __future__ import annotations

from dynabro_cli.components.models._api import REGISTRY, Network, at_least, last_layers
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.core.lazy import nn


@REGISTRY.register("cnn-digits", Network, reference="the default of task digits", check=at_least(4))
def cnn_digits(parameters: Network, shape: ImageShape) -> nn.Module:
    """A small CNN: Conv(16)-ReLU-MaxPool-Conv(32)-ReLU-MaxPool-FC(64)-ReLU-FC; d = 13,706 on
    digits.

    Kernels are 3 x 3 with padding 1.
    """
    return nn.Sequential(
        nn.Conv2d(shape.channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (shape.height // 4) * (shape.width // 4), 64),
        nn.ReLU(),
        *last_layers(parameters, 64, shape),
    )
