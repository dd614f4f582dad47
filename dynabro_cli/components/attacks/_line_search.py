"""Common part of the optimal attacks: a line search for the factor that puts the aggregate farthest
from the honest mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import Defence, replace
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import length

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    evals: int = parameter(
        20, minimum=1, help="aggregates that the search computes for each message"
    )
    start: float = parameter(0.0, help="factor at the start")
    delta: float = parameter(10.0, above=0, help="first step")
    ratio: float = parameter(
        0.8, above=0.5, below=1, help="factor of the step after a step that was not better"
    )


def strongest(
    parameters: Parameters,
    vectors: Tensor,
    byzantine: Tensor,
    defence: Defence,
    along: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the attacked vectors [m, d], with ``along(x)`` [d] in the Byzantine rows, for the x
    that a search finds.

    The search looks for the x that puts the aggregate farthest from the honest mean. Steps double
    as long as each is better than all before; after the first step that is not better, each step is
    ``ratio`` times the last. This is ByzFL's search. It may miss the best x, because nothing is
    known about the objective. Its state is on the device, so no step waits for the device.
    """

    def attacked(x: Tensor) -> Tensor:
        return replace(vectors, byzantine, along(x))

    def distance(x: Tensor) -> Tensor:
        return length(defence.aggregate(attacked(x)) - defence.honest)

    best = torch.full((), parameters.start, dtype=torch.float64, device=vectors.device)
    farthest = distance(best)
    step = torch.full_like(best, parameters.delta)
    expanding = torch.ones_like(best, dtype=torch.bool)
    for _ in range(parameters.evals - 1):
        tried = best + step
        distances = distance(tried)
        better = distances > farthest
        best, farthest = torch.where(better, tried, best), torch.where(better, distances, farthest)
        expanding = expanding & better
        step = torch.where(expanding, 2 * step, parameters.ratio * step)
    return attacked(best)
