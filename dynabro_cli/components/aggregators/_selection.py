"""Choose messages by a score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def refuse_f(rule: str, f: int, m: int, share: int, condition: str) -> None:
    """Raise SpecError unless 0 <= f and ``share`` f + 3 <= m; ``condition`` is the second one in
    the paper's form.
    """
    if f < 0 or m < share * f + 3:
        cause = (
            f"aggregator '{rule}': f={f} is not legal with {m} workers; {condition} must hold, so "
        )
        if m < 3:
            raise SpecError(f"{cause}it needs at least 3 workers. Try: workers=3")
        raise SpecError(
            f"{cause}f may be at most {(m - 3) // share}. Try: '{rule}:f=...' or more workers"
        )


def lowest(scores: Tensor, count: int) -> Tensor:
    """Return the bool mask [m] of the ``count`` lowest of the scores [m]; the lowest indices win
    ties.
    """
    order = scores.sort(stable=True).indices[:count]
    return torch.zeros_like(scores, dtype=torch.bool).index_fill(0, order, True)
