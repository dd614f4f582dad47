"""Logistic regression."""

from __future__ import annotations

from dynabro_cli.components.models._api import REGISTRY, Network, any_size, last_layers
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.core.lazy import nn


@REGISTRY.register("logistic", Network, reference="multinomial logistic regression", check=any_size)
def logistic(parameters: Network, shape: ImageShape) -> nn.Module:
    """Logistic regression: one linear layer, a convex problem; d = 7,850 on MNIST."""
    return nn.Sequential(
        nn.Flatten(), *last_layers(parameters, shape.channels * shape.height * shape.width, shape)
    )
