"""A small decoder-only transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dynabro_cli.components.models._api import REGISTRY, Network, last_layers
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import nn
from dynabro_cli.core.registration import Component, parameter


@dataclass(frozen=True)
class Parameters(Network):
    width: int = parameter(
        64, minimum=1, maximum=100_000, help="features of a position; a multiple of heads"
    )
    layers: int = parameter(4, minimum=1, maximum=1000, help="blocks")
    heads: int = parameter(4, minimum=1, maximum=1000, help="heads of attention in a block")


def check(model: Component[Any], shape: ImageShape) -> None:
    """Raise SpecError unless the task has windows of characters, and the heads share the width
    evenly.
    """
    if shape.channels != 1 or shape.height != 1:
        raise SpecError(
            f"model {model.name!r} reads windows of characters, but the task has images of "
            f"{shape.height} x {shape.width} "
            "pixels. Try: --task text-file"
        )
    if model.parameters.width % model.parameters.heads:
        width, heads = model.parameters.width, model.parameters.heads
        raise SpecError(
            f"model 'gpt': width={width} is not a multiple of heads={heads}. Try: "
            f"width={heads * (width // heads + 1)}"
        )


@REGISTRY.register(
    "gpt",
    Parameters,
    reference="Radford et al., 2019 (GPT-2's blocks); pre-norm: Xiong et al., ICML 2020",
    check=check,
)
def gpt(parameters: Parameters, shape: ImageShape) -> nn.Module:
    """GPT: embeddings of characters and places, pre-norm blocks of causal attention and a GELU
    network, and a linear layer.

    The features of a window's last position give the logits of the character after the window. On
    text-file, d is about 200,000.

    One pass computes the gradients of all workers: embeddings, linear layers and layer norms write
    each worker's sums into its row of the matrix, and attention has no parameters besides its
    linear layers.

    Differs from the paper: no dropout, and no weights shared between the first and the last layer.
    Only embeddings start from N(0, 0.02^2); linear layers have torch's initial values.
    """
    from dynabro_cli.components.models._transformer import Decoder

    decoder = Decoder(
        shape.classes, shape.width, parameters.width, parameters.heads, parameters.layers
    )
    return nn.Sequential(decoder, *last_layers(parameters, parameters.width, shape))
