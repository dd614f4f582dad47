"""A little is enough, against the defence in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import (
    REGISTRY,
    Attack,
    AttackSetting,
    Defence,
    State,
    honest_spread,
    stay,
)
from dynabro_cli.components.attacks._line_search import Parameters, strongest

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register(
    "optimal-alie",
    Parameters,
    reference="Allouah, Farhadkhani, Guerraoui, Gupta, Pinot & Stephan, AISTATS 2023, "
    "experiments; line search as ByzFL's",
)
def optimal_alie(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Optimal ALIE: the honest mean, moved by the number of standard deviations that harms the
    aggregation chain most.

    g~_i = g_bar - z sigma, with mean and element-wise standard deviation (ddof = 1) over the honest
    workers, and the z that a line search finds to maximise |A(z) - mu|. A(z) is the aggregate that
    the server would make of the attack, with the current momentum of the workers and state of the
    chain; mu is the mean of the honest messages. For every message (of every MLMC level) the search
    computes evals= aggregates. It begins at start=; its steps double from delta= on as long as the
    aggregate moves farther away, and then shrink by ratio=. In a round within which identities
    change, each gradient computation has its own search.
    """

    def messages(vectors: Tensor, byzantine: Tensor, _: State, defence: Defence) -> Tensor:
        mean, deviation = honest_spread(vectors, byzantine)
        return strongest(parameters, vectors, byzantine, defence, lambda z: mean - z * deviation)

    return Attack({}, messages, stay, reads_own=False, sees_defence=True)
