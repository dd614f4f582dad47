"""Logistic regression."""

from __future__ import annotations

from torch import nn

from dynabro_cli.components import NoParameters
from dynabro_cli.models._api import REGISTRY
from dynabro_cli.tasks._api import ImageShape


@REGISTRY.register("logistic", reference="multinomial logistic regression")
def logistic(_: NoParameters, shape: ImageShape) -> nn.Module:
    """Logistic regression: one linear layer, a convex problem; d = 7,850 on MNIST."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.channels * shape.height * shape.width, shape.classes))
