"""Inner-product manipulation against the defence in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import (
    REGISTRY,
    Attack,
    AttackSetting,
    Defence,
    State,
    honest_mean,
    stay,
)
from dynabro_cli.components.attacks._line_search import Parameters, strongest

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register(
    "optimal-ipm",
    Parameters,
    reference="Allouah, Farhadkhani, Guerraoui, Gupta, Pinot & Stephan, AISTATS 2023, "
    "experiments; line search as ByzFL's",
)
def optimal_ipm(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Optimal IPM: minus the honest mean, times the factor that harms the aggregation chain most.

    g~_i = -epsilon g_bar, g_bar the mean over the honest workers, with the epsilon that a line
    search finds to maximise |A(epsilon) - mu|. A(epsilon) is the aggregate that the server would
    make of the attack, with the current momentum of the workers and state of the chain; mu is the
    mean of the honest messages. For every message (of every MLMC level) the search computes evals=
    aggregates. It begins at start=; its steps double from delta= on as long as the aggregate moves
    farther away, and then shrink by ratio=. In a round within which identities change, each
    gradient computation has its own search.
    """

    def messages(vectors: Tensor, byzantine: Tensor, _: State, defence: Defence) -> Tensor:
        mean = honest_mean(vectors, byzantine)
        return strongest(parameters, vectors, byzantine, defence, lambda epsilon: -epsilon * mean)

    return Attack({}, messages, stay, reads_own=False, sees_defence=True)
