"""A small network with one hidden layer."""

from typing import Annotated

from torch import nn

from dynabro_cli.plugins import ImageShape, Range, model


@model("my-model", reference="who, where")
def my_model(shape: ImageShape, *, width: Annotated[int, Range(minimum=1)] = 32) -> nn.Module:
    """One hidden layer of ``width`` tanh units; images [n, c, h, w] -> logits [n, classes]."""
    inputs = shape.channels * shape.height * shape.width
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, shape.classes)
    )
