"""Multi-layer perceptron."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components.models._api import REGISTRY, Network, any_size, last_layers
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.core.lazy import nn
from dynabro_cli.core.registration import parameter


@dataclass(frozen=True)
class Parameters(Network):
    hidden: int = parameter(100, minimum=1, maximum=10_000_000, help="units of a hidden layer")
    layers: int = parameter(1, minimum=1, maximum=1000, help="hidden layers")
    dropout: float = parameter(
        0.0, minimum=0, below=1, help="probability of dropping a hidden unit"
    )


@REGISTRY.register("mlp", Parameters, reference="multi-layer perceptron with ReLU", check=any_size)
def mlp(parameters: Parameters, shape: ImageShape) -> nn.Module:
    """Multi-layer perceptron: ``layers`` hidden layers of ``hidden`` ReLU units, each with optional
    dropout.
    """
    width = shape.channels * shape.height * shape.width
    modules: list[nn.Module] = [nn.Flatten()]
    for _ in range(parameters.layers):
        modules += [nn.Linear(width, parameters.hidden), nn.ReLU()]
        if parameters.dropout:
            modules.append(nn.Dropout(parameters.dropout))
        width = parameters.hidden
    return nn.Sequential(*modules, *last_layers(parameters, width, shape))
