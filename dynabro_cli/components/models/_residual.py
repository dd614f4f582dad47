"""The parts of residual networks."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

GROUPS = 32


class Block(nn.Module):
    """y = relu(f(x) + s(x)): f is Conv-Norm-ReLU-Conv-Norm, and s the shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int, kind: str) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False),
            norm(kind, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            norm(kind, channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), norm(kind, channels)
            )
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.activation(self.residual(x) + self.shortcut(x)))


class MeanOverPositions(nn.Module):
    """Global average pooling: [n, c, h, w] -> [n, c]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def norm(kind: str, channels: int) -> nn.Module:
    """Return group norm of 32 groups (``group``), or batch norm (``batch``)."""
    return nn.GroupNorm(GROUPS, channels) if kind == "group" else nn.BatchNorm2d(channels)
