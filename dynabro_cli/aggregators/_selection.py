"""Choose messages by a score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def lowest(scores: Tensor, count: int) -> Tensor:
    """Return the bool mask [m] of the ``count`` lowest of the scores [m]; the lowest indices win ties."""
    order = scores.sort(stable=True).indices[:count]
    return torch.zeros_like(scores, dtype=torch.bool).index_fill(0, order, True)
