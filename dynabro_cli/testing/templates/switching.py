"""A block of neighbouring workers is Byzantine, and moves on."""

from typing import Annotated

import torch
from torch import Tensor

from dynabro_cli.plugins import Range, switching


@switching("my-switching", reference="who, where, which algorithm")
def my_switching(tick: int, *, m: int, f: int, K: Annotated[int, Range(minimum=1)] = 10) -> Tensor:
    """Block of f neighbouring workers, which moves on by one worker every K ticks."""
    return (torch.arange(m) - tick // K) % m < f  # bool [m]
