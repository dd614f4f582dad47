"""A small network with one hidden layer."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components import parameter
from dynabro_cli.lazy import nn
from dynabro_cli.models._api import REGISTRY, any_size
from dynabro_cli.tasks._api import ImageShape


@dataclass(frozen=True)
class Parameters:
    width: int = parameter(32, minimum=1, maximum=100_000, help="units of the hidden layer")


@REGISTRY.register("my-model", Parameters, reference="who, where", check=any_size)
def my_model(parameters: Parameters, shape: ImageShape) -> nn.Module:
    """One hidden layer of ``width`` tanh units; images [n, c, h, w] -> logits [n, classes]."""
    inputs = shape.channels * shape.height * shape.width
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, parameters.width), nn.Tanh(), nn.Linear(parameters.width, shape.classes)
    )
