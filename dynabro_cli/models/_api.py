"""The contract of models, and their registry.

A model is a factory ``(parameters, ImageShape) -> nn.Module`` from images [n, c, h, w] to logits [n, classes]; softmax
belongs to the loss. Parameters are drawn by torch's default initialisation, from the stream that the caller has seeded.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from dynabro_cli.components import Registry
from dynabro_cli.errors import SpecError
from dynabro_cli.tasks._api import ImageShape

REGISTRY: Registry[Callable[..., nn.Module]] = Registry("model", "dynabro_cli.models")


def at_least(model: str, shape: ImageShape, pixels: int) -> None:
    """Raise SpecError where the images have fewer than ``pixels`` rows or columns."""
    if min(shape.height, shape.width) < pixels:
        raise SpecError(
            f"model {model!r} needs images of at least {pixels} x {pixels} pixels, and the task's are {shape.height} x "
            f"{shape.width}; type --model cnn-digits, mlp or logistic"
        )
