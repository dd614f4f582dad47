"""The contract of models, and their registry.

A model is a factory ``(parameters, ImageShape) -> nn.Module`` from images [n, c, h, w] to logits [n, classes]; softmax
belongs to the loss. Parameters are drawn by torch's default initialisation, from the stream that the caller has seeded.

Its ``check`` decides for which shapes the network exists. A model without ``check`` is built, without memory for its
parameters, to find out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dynabro_cli.components import Component, Registry
from dynabro_cli.errors import SpecError
from dynabro_cli.tasks._api import ImageShape

if TYPE_CHECKING:
    from torch import nn

REGISTRY: Registry[Callable[..., nn.Module]] = Registry("model", "dynabro_cli.models")


def at_least(pixels: int) -> Callable[[Component[Any], ImageShape], None]:
    """Return a check that raises SpecError if images have fewer than ``pixels`` rows or columns."""

    def check(model: Component[Any], shape: ImageShape) -> None:
        if min(shape.height, shape.width) < pixels:
            raise SpecError(
                f"model {model.name!r} needs images of at least {pixels} x {pixels} pixels, and the task's are "
                f"{shape.height} x {shape.width}; type --model cnn-digits, mlp or logistic"
            )

    return check


def any_size(_model: Component[Any], _shape: ImageShape) -> None:
    """Accept images of any size."""
