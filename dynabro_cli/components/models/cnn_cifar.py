"""The paper's CNN for CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components.models._api import REGISTRY, Network, at_least, last_layers
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.core.lazy import nn
from dynabro_cli.core.registration import parameter


@dataclass(frozen=True)
class Parameters(Network):
    width: float = parameter(
        1.0,
        above=0,
        maximum=16,
        later=True,
        help="channels of the convolutions, relative to the paper's",
    )


@REGISTRY.register(
    "cnn-cifar", Parameters, reference="DynaBRO (ICML 2024), Table 2", check=at_least(4)
)
def cnn_cifar(parameters: Parameters, shape: ImageShape) -> nn.Module:
    """The paper's CNN for CIFAR-10: four convolutions with batch norm, two poolings, dropout 0.25,
    FC(128).

    Conv(64)-ReLU-BN-Conv(64)-ReLU-BN-MaxPool-Dropout-Conv(128)-ReLU-BN-Conv(128)-ReLU-BN-MaxPool-Dropout-FC(128)-ReLU-
    Dropout-FC(10). The numbers of channels of the convolutions are multiplied by ``width`` and
    rounded. Kernels are 3 x 3 with padding 1; the paper does not give them, so they are those in
    the code of Allouah et al. (2023). d = 1,310,922 on CIFAR-10, and 280,410 with width=0.25.
    """
    few, many = (max(1, round(channels * parameters.width)) for channels in (64, 128))
    features = many * (shape.height // 4) * (shape.width // 4)
    return nn.Sequential(
        *_block(shape.channels, few),
        *_block(few, few),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        *_block(few, many),
        *_block(many, many),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(features, 128),
        nn.ReLU(),
        nn.Dropout(0.25),
        *last_layers(parameters, 128, shape),
    )


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(outputs)
