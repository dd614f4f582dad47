"""ResNet-18 for small pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from dynabro_cli.components import parameter
from dynabro_cli.models._api import REGISTRY
from dynabro_cli.tasks._api import ImageShape

GROUPS = 32
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels, and the stride of the first block, of each stage of two blocks."""


@dataclass(frozen=True)
class Parameters:
    norm: str = parameter("group", choices=("group", "batch"), help="group norm of 32 groups, or batch norm")


@REGISTRY.register("resnet18", Parameters, reference="He, Zhang, Ren & Sun, CVPR 2016; group norm: Wu & He, ECCV 2018")
def resnet18(parameters: Parameters, shape: ImageShape) -> nn.Module:
    """ResNet-18 for CIFAR: a 3 x 3 stem without pooling, 4 stages of 2 residual blocks, mean over positions, FC.

    The stages have 64, 128, 256 and 512 channels, and the first block of all but the first halves height and width; where a
    block changes the shape, its shortcut is a 1 x 1 convolution with a norm. Convolutions have no bias. d = 11,173,962 on
    CIFAR-10, so that a matrix of all workers' gradients takes 1.1 GB for 25 workers.

    norm=group normalises each sample by itself and has no running statistics; norm=batch is the original.

    Differs from the paper: its ImageNet networks begin with a 7 x 7 convolution of stride 2 and a pooling, which would leave
    8 x 8 of 32 x 32 pixels.
    """
    stem = nn.Conv2d(shape.channels, STAGES[0][0], 3, padding=1, bias=False)
    layers: list[nn.Module] = [stem, _norm(parameters.norm, STAGES[0][0]), nn.ReLU()]
    inputs = STAGES[0][0]
    for channels, stride in STAGES:
        layers += [Block(inputs, channels, stride, parameters.norm), Block(channels, channels, 1, parameters.norm)]
        inputs = channels
    return nn.Sequential(*layers, MeanOverPositions(), nn.Linear(inputs, shape.classes))


class Block(nn.Module):
    """y = relu(f(x) + s(x)): f is Conv-Norm-ReLU-Conv-Norm, and s the shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int, norm: str) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False),
            _norm(norm, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            _norm(norm, channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), _norm(norm, channels))
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.activation(self.residual(x) + self.shortcut(x)))


class MeanOverPositions(nn.Module):
    """Global average pooling: [n, c, h, w] -> [n, c]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def _norm(name: str, channels: int) -> nn.Module:
    return nn.GroupNorm(GROUPS, channels) if name == "group" else nn.BatchNorm2d(channels)
