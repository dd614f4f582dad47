"""What the server is asked for, once for each prefix of a round's mini-batches."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

States = dict[str, Tensor]


class Question(NamedTuple):
    """The gradients of one prefix of a round's mini-batches, and who is Byzantine.

    Attributes:
        total: Sums of gradients [m, d]; the first k rows count.
        places: The row of ``total`` that is each worker's, [m]; None where it is its own.
        batches: The number of mini-batches in the sums, a tensor of one number; None stands for 1.
        byzantine: The mask [m].
        ever: The mask [m] of the workers that were Byzantine at some time of the round.
        attacked: Whether the gradients have been attacked already.
        judged: Whether the aggregate's distance from the honest mean is wanted.
        learned: Whether the attack is to learn from these vectors; it is told of a round's once.
        x: The model [d], for a method that filters by itself; else None.
        cohort: The numbers of the workers whose messages are aggregated, on the device; None for all.
    """

    total: Tensor
    places: Tensor | None
    batches: Tensor | None
    byzantine: Tensor
    ever: Tensor
    attacked: bool
    judged: bool
    learned: bool = False
    x: Tensor | None = None
    cohort: Tensor | None = None
