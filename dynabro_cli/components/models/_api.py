"""The contract of models, and their registry.

A model is a factory ``(parameters, ImageShape) -> nn.Module`` from images [n, c, h, w] to logits
[n, classes]. The loss applies the softmax; the parameter ``softmax`` adds another one. Torch's
default initialisation draws the parameters from the stream that the caller has seeded.

Its ``check`` decides for which shapes the network exists. To find out, a model without ``check`` is
built without memory for its parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import nn
from dynabro_cli.core.registration import Component, Registry, parameter

if TYPE_CHECKING:
    from torch import Tensor

REGISTRY: Registry[Callable[..., nn.Module]] = Registry("model", __package__)


class LabelledInputs(NamedTuple):
    """The test set as a network sees it: inputs [n, c, h, w], normalised, and labels [n], on the
    run's device.
    """

    inputs: Tensor
    labels: Tensor


WorkerLabels = tuple[tuple[int, int, int], ...]
"""(worker, label, count) for every label of a worker's training samples; empty if all workers have
all samples.
"""


@dataclass(frozen=True)
class Network:
    """The parameters that every network has."""

    softmax: bool = parameter(
        False, later=True, help="a softmax as the last layer, ahead of the loss's own"
    )


def last_layers(parameters: Network, inputs: int, shape: ImageShape) -> tuple[nn.Module, ...]:
    """Return the linear layer to the classes, and the softmax if ``parameters`` ask for it.

    Table 2 of the paper prints SoftMax as the networks' last layer. The cross-entropy loss already
    applies a softmax. With both, the loss sees softmax(softmax(z)), whose gradients are about ten
    times smaller at first.
    """
    linear = nn.Linear(inputs, shape.classes)
    return (linear, nn.Softmax(dim=1)) if parameters.softmax else (linear,)


def at_least(pixels: int) -> Callable[[Component[Any], ImageShape], None]:
    """Return a check that raises SpecError if images have fewer than ``pixels`` rows or columns."""

    def check(model: Component[Any], shape: ImageShape) -> None:
        if min(shape.height, shape.width) < pixels:
            raise SpecError(
                f"model {model.name!r} needs images of at least {pixels} x {pixels} pixels, "
                "but the task's are "
                f"{shape.height} x {shape.width}. Try: --model cnn-digits, mlp or logistic"
            )

    return check


def any_size(_model: Component[Any], _shape: ImageShape) -> None:
    """Accept images of any size."""
