"""Common part of the two attacks of Fang et al.: the direction in which the model would move
without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import Defence
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.means import weighted

if TYPE_CHECKING:
    from torch import Tensor


def direction_parameter() -> str:
    """Declare the parameter ``direction``: whose direction the attack reverses."""
    direction: str = parameter(
        "aggregate",
        choices=("aggregate", "mean"),
        help="signs to reverse: of the aggregate without attack, or of the mean of all workers",
    )
    return direction


def signs(vectors: Tensor, seen: tuple[Defence, ...]) -> Tensor:
    """Return the signs [d] of the aggregate without attack; of the mean of all own vectors if the
    defence is not seen.
    """
    return (
        seen[0].aggregate(vectors).sign()
        if seen
        else weighted(vectors, vectors.new_ones(len(vectors))).sign()
    )
