"""The paper's CNN for CIFAR-10."""

from __future__ import annotations

from dynabro_cli.components import NoParameters
from dynabro_cli.lazy import nn
from dynabro_cli.models._api import REGISTRY, at_least
from dynabro_cli.tasks._api import ImageShape


@REGISTRY.register("cnn-cifar", reference="DynaBRO (ICML 2024), Table 2", check=at_least(4))
def cnn_cifar(_: NoParameters, shape: ImageShape) -> nn.Module:
    """The paper's CNN for CIFAR-10: four convolutions with batch norm, two poolings, dropout 0.25, FC(128).

    Conv(64)-ReLU-BN-Conv(64)-ReLU-BN-MaxPool-Dropout-Conv(128)-ReLU-BN-Conv(128)-ReLU-BN-MaxPool-Dropout-FC(128)-ReLU-
    Dropout-FC(10). Kernels are 3 x 3 with padding 1, which the paper does not give (as in the code of Allouah et al., 2023).
    """
    height, width = shape.height // 4, shape.width // 4
    return nn.Sequential(
        *_block(shape.channels, 64),
        *_block(64, 64),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        *_block(64, 128),
        *_block(128, 128),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(128 * height * width, 128),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(128, shape.classes),
    )


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(outputs)
