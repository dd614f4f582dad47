"""Who is Byzantine in a round, and whose gradients have to be computed for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.attacks._api import Attack
from dynabro_cli.simulation.memory import send
from dynabro_cli.simulation.parts import Parts, State
from dynabro_cli.simulation.problems import Relabel


class Tick(NamedTuple):
    """One point of the strategy's clock.

    Attributes:
        byzantine: The mask [m], on the device.
        computed: The k workers whose gradients matter, in ascending order, on the CPU.
        places: Each worker's row among those computed, [m], on the device; some row of them for the workers that are not.
            None where k = m.
    """

    byzantine: Tensor
    computed: Tensor
    places: Tensor | None


class Identities(NamedTuple):
    """Who is Byzantine in a round.

    ``ticks`` has one entry for a clock that counts rounds, else one for each computation. ``ever`` [m] marks the workers
    that are Byzantine at some tick, on the device, and ``honest`` the others, on the CPU; ``most`` is the largest number at one
    tick.
    """

    ticks: list[Tick]
    ever: Tensor
    most: int
    changes: int
    dynamic: bool
    any_honest: bool
    honest: Tensor


def identify(parts: Parts, state: State, computations: int) -> Identities:
    """Ask the switching strategy who is Byzantine in the round that begins, of so many computations; keep the last mask."""
    mask = parts.switching.mask
    if parts.spec.clock == "round":
        masks = [mask(state.round)]
    else:
        masks = [mask(state.spent + computation) for computation in range(computations)]
    before = [masks[0] if state.mask is None else state.mask, *masks[:-1]]
    changed = [not torch.equal(old, new) for old, new in zip(before, masks, strict=True)]
    state.mask = masks[-1]
    stacked = torch.stack(masks)
    ever = stacked.any(0)
    device = parts.problem.x.device
    decisive = masks if parts.spec.attack_entry == "gradient" else [masks[-1]] * len(masks)
    return Identities(
        ticks=[_tick(parts, byzantine, decides, device) for byzantine, decides in zip(masks, decisive, strict=True)],
        ever=send(ever, device),
        most=int(stacked.sum(1).max()),
        changes=sum(changed),
        dynamic=any(changed[1:]),
        any_honest=not bool(ever.all()),
        honest=~ever,
    )


def _tick(parts: Parts, byzantine: Tensor, decides: Tensor, device: torch.device) -> Tick:
    """``decides`` is the mask by which the attack will replace this tick's gradients, or messages made of them.

    A replaced vector is not computed where the attack does not read it, unless it lives on in the worker's momentum.
    """
    lives_on = parts.spec.attack_entry == "message" and parts.method.remembers
    if parts.attack.reads_own or lives_on or not decides.any() or decides.all():
        return Tick(send(byzantine, device), torch.arange(len(decides)), None)
    computed = (~decides).nonzero()[:, 0]
    places = torch.zeros(len(decides), dtype=torch.int64)
    places[computed] = torch.arange(len(computed))
    return Tick(send(byzantine, device), computed, send(places, device))


def relabelling(attack: Attack, who: Identities) -> Relabel | None:
    """The labels that gradients are computed with, by who is Byzantine at each computation; None where they are the data's."""
    change = attack.labels
    if change is None:
        return None
    return lambda labels, computation, classes: change(
        labels, who.ticks[min(computation, len(who.ticks) - 1)].byzantine, classes
    )
