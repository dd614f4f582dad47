"""The contract of attacks, and their registry.

An attack is a factory ``(parameters, AttackSetting) -> Attack``. It never modifies its input and is defined for any number
of Byzantine workers from 0 to m. Where all m are Byzantine, an omniscient attack takes for "honest" what the workers'
own vectors would have been: the setting is homogeneous, so these follow the honest distribution at the current model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.components import Registry

State = dict[str, Tensor]


@dataclass(frozen=True)
class AttackSetting:
    """What an attack knows of its run.

    Attributes:
        workers: Their number, m.
        beta: The momentum parameter of the method, where it has one.
        always: How many workers are Byzantine, where it is said beforehand that it is always so many.
    """

    workers: int
    beta: float | None = None
    always: int | None = None


class Attack(NamedTuple):
    """An attack in its setting.

    Attributes:
        initial: The state before the first round.
        messages: Maps the workers' own vectors [m, d], the Byzantine mask [m] and the state to the attacked vectors
            [m, d]; the rows of honest workers stay as they are. Called for every MLMC level of a round.
        advance: Maps the mask and the state to the next state; called once a round (or gradient computation).
        reads_own: Whether a Byzantine worker's own vector has any influence while another worker is honest; where it has
            none, that worker's gradients are not computed, and its row of the vectors is arbitrary.
        by_number: Whether the attack tells workers apart by their numbers, as where its state has a row for each. It needs all
            workers to answer in every round: where some do, rows are those of other workers from round to round.
    """

    initial: State
    messages: Callable[[Tensor, Tensor, State], Tensor]
    advance: Callable[[Tensor, State], State]
    reads_own: bool = True
    by_number: bool = False


REGISTRY: Registry[Callable[..., Attack]] = Registry("attack", "dynabro_cli.attacks")


def memoryless(messages: Callable[[Tensor, Tensor], Tensor], *, reads_own: bool = True) -> Attack:
    """Wrap an attack that looks at the vectors of this call alone."""
    return Attack({}, lambda own, byzantine, _state: messages(own, byzantine), lambda _mask, state: state, reads_own)


def replace(own: Tensor, byzantine: Tensor, vectors: Tensor) -> Tensor:
    """Put ``vectors`` ([d] or [m, d]) into the rows of the Byzantine workers."""
    return torch.where(byzantine[:, None], vectors, own)


def honest_weights(byzantine: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [m] of 1 for the workers that count as honest, all of them where every worker is Byzantine; and their sum."""
    weights = (~byzantine | byzantine.all()).to(like.dtype)
    return weights, weights.sum()


def honest_mean(own: Tensor, byzantine: Tensor) -> Tensor:
    """The mean [d] of the honest workers' vectors; of all own vectors where every worker is Byzantine."""
    weights, count = honest_weights(byzantine, own)
    return (weights / count) @ own
