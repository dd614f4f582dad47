"""Logistic regression."""

from __future__ import annotations

from dynabro_cli.components import NoParameters
from dynabro_cli.lazy import nn
from dynabro_cli.models._api import REGISTRY, any_size
from dynabro_cli.tasks._api import ImageShape


@REGISTRY.register("logistic", reference="multinomial logistic regression", check=any_size)
def logistic(_: NoParameters, shape: ImageShape) -> nn.Module:
    """Logistic regression: one linear layer, a convex problem; d = 7,850 on MNIST."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.channels * shape.height * shape.width, shape.classes))
