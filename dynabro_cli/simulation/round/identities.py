"""Byzantine workers of a round, and the workers whose gradients are computed for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.components.attacks._api import BEFORE_MEMORY, Attack
from dynabro_cli.components.methods._api import senders
from dynabro_cli.simulation.problem.interface import Relabel
from dynabro_cli.simulation.round.parts import Parts, State


class Tick(NamedTuple):
    """One point of the strategy's clock.

    Attributes:
        byzantine: The mask [m].
        rows: The number k of workers whose gradients matter.
        places: Each worker's row among the k computed rows, [m]; any row for the other workers.
            None if k = m.

    m counts the workers that answer in the round, here and in ``Identities``.
    """

    byzantine: Tensor
    rows: int
    places: Tensor | None


class Drawn(NamedTuple):
    """The strategy's answers for a round, for the host: they stay on the CPU.

    Attributes:
        first: The first tick.
        masks: The Byzantine workers among all workers at each tick.
        changes: Number of ticks at which the set differs from the tick before.
        honest: The mask [m] of the workers that are honest at every tick.
        computed: The numbers of the workers whose gradients matter at each tick, in ascending
            order.
    """

    first: int
    masks: list[Tensor]
    changes: int
    honest: Tensor
    computed: list[Tensor]

    @property
    def most(self) -> int:
        """The largest number of Byzantine workers at one tick."""
        return max(int(mask.sum()) for mask in self.masks)


class Identities(NamedTuple):
    """Byzantine workers of a round, for the device.

    Attributes:
        ticks: One tick if the clock counts rounds; otherwise one for each computation.
        ever: The mask [m] of the workers that are Byzantine at some tick.
        unseen: The mask of the workers, among all workers, that are in ``ever`` or do not answer.
        everyone: Like ``ever``, but among all workers, if the method aggregates delayed messages;
            else None.
        answering: The numbers of the workers that answer; None if all answer.
        dynamic: True if the Byzantine set changes within the round.
        any_honest: True if a worker is honest at every tick.
    """

    ticks: tuple[Tick, ...]
    ever: Tensor
    unseen: Tensor
    everyone: Tensor | None
    answering: Tensor | None
    dynamic: bool
    any_honest: bool

    def tick(self, computation: int) -> Tick:
        """Return the tick of a computation of the round."""
        return self.ticks[min(computation, len(self.ticks) - 1)]


def identify(
    parts: Parts, state: State, computations: int, level: int | None = None
) -> tuple[Identities, Drawn]:
    """Ask the switching strategy for the Byzantine workers of the next round, with
    ``computations``; keep the last mask.

    ``level`` is the round's MLMC level, None without MLMC.
    """
    first = state.round if parts.spec.clock == "round" else state.spent
    count = 1 if parts.spec.clock == "round" else computations
    masks = everyone = [
        _mask(parts, state, tick, computations, level) for tick in range(first, first + count)
    ]
    before = [masks[0] if state.mask is None else state.mask, *masks[:-1]]
    changed = [not torch.equal(old, new) for old, new in zip(before, masks, strict=True)]
    state.mask = masks[-1]
    answering = None if parts.answering is None else parts.answering(state.round)
    if answering is not None:
        masks = [mask[answering] for mask in masks]
    ever = masks[0] if len(masks) == 1 else torch.stack(masks).any(0)
    unseen = (
        ever
        if answering is None
        else torch.ones(len(everyone[0]), dtype=torch.bool).index_copy(0, answering, ever)
    )
    # messages are sent once a round, after its last tick
    decisive = masks if parts.spec.attack_entry in BEFORE_MEMORY else [masks[-1]] * len(masks)
    ticks = [
        _tick(parts, byzantine, decides, answering)
        for byzantine, decides in zip(masks, decisive, strict=True)
    ]
    delayed = answering is not None and senders(parts.method).delayed
    who = Identities(
        ticks=tuple([tick for tick, _ in ticks]),
        ever=ever,
        unseen=unseen,
        everyone=torch.stack(everyone).any(0) if delayed else None,
        answering=answering,
        dynamic=any(changed[1:]),
        any_honest=not bool(ever.all()),
    )
    return who, Drawn(first, everyone, sum(changed), ~ever, [computed for _, computed in ticks])


def _mask(parts: Parts, state: State, tick: int, computations: int, level: int | None) -> Tensor:
    """Return the Byzantine workers, among all workers, at a tick of the next round."""
    strategy = parts.switching
    if strategy.follow is not None:
        return strategy.follow.mask(state.switching)
    if strategy.within is not None and parts.spec.clock != "round":
        return strategy.within(state.round, tick - state.spent, computations)
    if strategy.in_round is not None:
        return strategy.in_round(tick, None if level is None else corrected(level, computations))
    return strategy.mask(tick)


def corrected(level: int, computations: int) -> int:
    """Return the level of a round's correction; 0 if there is no correction, because the drawn
    level is above the largest.
    """
    return level if computations == 2**level else 0


def _tick(
    parts: Parts, byzantine: Tensor, decides: Tensor, answering: Tensor | None
) -> tuple[Tick, Tensor]:
    """Return the tick, and the numbers of the workers whose gradients matter; ``decides`` is the
    mask by which the attack will replace gradients, or messages made from them.

    A replaced vector is not computed if the attack does not read it, unless it stays in the
    worker's momentum.
    """
    numbers = torch.arange(len(decides)) if answering is None else answering
    lives_on = parts.spec.attack_entry == "message" and senders(parts.method).remembers
    everyone = Tick(byzantine, len(numbers), None), numbers
    if parts.attack.reads_own or lives_on:
        return everyone
    computed = (~decides).nonzero()[:, 0]
    if len(computed) in (0, len(numbers)):
        return everyone
    places = torch.zeros(len(decides), dtype=torch.int64)
    places[computed] = torch.arange(len(computed))
    return Tick(byzantine, len(computed), places), numbers[computed]


def relabelling(attack: Attack, who: Identities) -> Relabel | None:
    """Return the function that changes labels by each computation's Byzantine set; None if the
    attack changes no labels.
    """
    change = attack.labels
    if change is None:
        return None
    return lambda labels, computation, classes: change(
        labels, who.tick(computation).byzantine, classes
    )
