"""ResNet-18 for small pictures."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components.models._api import REGISTRY, Network, any_size, last_layers
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.core.lazy import nn
from dynabro_cli.core.registration import parameter

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels, and the stride of the first block, of each stage of two blocks."""


@dataclass(frozen=True)
class Parameters(Network):
    norm: str = parameter(
        "group", choices=("group", "batch"), help="group norm of 32 groups, or batch norm"
    )


@REGISTRY.register(
    "resnet18",
    Parameters,
    reference="He, Zhang, Ren & Sun, CVPR 2016; group norm: Wu & He, ECCV 2018",
    check=any_size,
)
def resnet18(parameters: Parameters, shape: ImageShape) -> nn.Module:
    """ResNet-18 for CIFAR: a 3 x 3 stem without pooling, 4 stages of 2 residual blocks, mean over
    positions, FC.

    The stages have 64, 128, 256 and 512 channels, and the first block of each stage except the
    first halves height and width. If a block changes the shape, its shortcut is a 1 x 1 convolution
    with a norm. Convolutions have no bias. d = 11,173,962 on CIFAR-10, so a matrix of all gradients
    takes 1.1 GB for 25 workers.

    norm=group normalises each sample separately and has no running statistics; norm=batch is the
    original.

    Differs from the paper: the paper's ImageNet networks begin with a 7 x 7 convolution of stride 2
    and a pooling, which would reduce 32 x 32 pixels to 8 x 8.
    """
    from dynabro_cli.components.models._residual import Block, MeanOverPositions, norm

    stem = nn.Conv2d(shape.channels, STAGES[0][0], 3, padding=1, bias=False)
    layers: list[nn.Module] = [stem, norm(parameters.norm, STAGES[0][0]), nn.ReLU()]
    inputs = STAGES[0][0]
    for channels, stride in STAGES:
        layers += [
            Block(inputs, channels, stride, parameters.norm),
            Block(channels, channels, 1, parameters.norm),
        ]
        inputs = channels
    return nn.Sequential(*layers, MeanOverPositions(), *last_layers(parameters, inputs, shape))
