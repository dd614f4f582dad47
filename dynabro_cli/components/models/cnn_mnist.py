"""The paper's CNN for MNIST."""

from __future__ import annotations

from dynabro_cli.components.models._api import REGISTRY, Network, at_least, last_layers
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.core.lazy import nn


@REGISTRY.register(
    "cnn-mnist", Network, reference="DynaBRO (ICML 2024), Table 2", check=at_least(16)
)
def cnn_mnist(parameters: Network, shape: ImageShape) -> nn.Module:
    """The paper's CNN for MNIST: Conv(20)-ReLU-MaxPool-Conv(20)-ReLU-MaxPool-FC(500)-ReLU-FC(10); d
    = 176,050.

    Kernels are 5 x 5 without padding. The paper does not give them; the code of Allouah et al.
    (2023) has these.
    """
    return two_convolutions(parameters, shape, 20, 20)


def two_convolutions(parameters: Network, shape: ImageShape, first: int, second: int) -> nn.Module:
    """Build two 5 x 5 convolutions with ``first`` and ``second`` channels, each pooled, then 500
    hidden units.
    """
    height, width = (((size - 4) // 2 - 4) // 2 for size in (shape.height, shape.width))
    return nn.Sequential(
        nn.Conv2d(shape.channels, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * height * width, 500),
        nn.ReLU(),
        *last_layers(parameters, 500, shape),
    )
