"""Records of rounds, until they are read from the device, and their events."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.events import Identity, Round, Totals
from dynabro_cli.methods._api import Plan
from dynabro_cli.simulation.round.identities import Drawn

PATH_DIMENSIONS = 3
"""Largest dimension of a model whose points are recorded, for plots."""


class Numbers(NamedTuple):
    """The measured numbers of a round; None if a number is not measured.

    A device keeps them until a flush reads many rounds at once, so that no round waits for it.
    """

    gradient_norm: float | None
    aggregation_error: float | None
    learning_rate: float | None
    accepted: float | None
    acceptance: float | None
    squared_gradient: float | None


NUMBERS = Numbers._fields


class Record(NamedTuple):
    """What the host knows of a round; ``measured`` tells which of ``NUMBERS`` the device knows."""

    round: int
    budget: int
    plan: Plan
    dynamic: bool
    drawn: Drawn
    measured: tuple[bool, ...]
    changes: tuple[Identity, ...]


def round_event(record: Record, numbers: Numbers) -> Round:
    norm, accepted = numbers.gradient_norm, numbers.accepted
    return Round(
        round=record.round,
        budget=record.budget,
        level=record.plan.level,
        cost=record.plan.prefixes[-1],
        byzantine=record.drawn.most,
        switched=record.drawn.changes > 0,
        dynamic=record.dynamic,
        accepted=None if accepted is None else bool(accepted),
        learning_rate=numbers.learning_rate or 0.0,
        gradient_norm=math.nan if norm is None else norm,
        aggregation_error=numbers.aggregation_error,
        acceptance=numbers.acceptance,
    )


def totals_after(totals: Totals, record: Record, squared_gradient: float | None) -> Totals:
    """Return ``totals`` after one more round."""
    measured = totals.squared_gradients is not None and squared_gradient is not None
    return Totals(
        record.round + 1,
        record.budget,
        totals.switches + record.drawn.changes,
        totals.dynamic_rounds + record.dynamic,
        (totals.squared_gradients or 0.0) + (squared_gradient or 0.0) if measured else None,
    )


def changes_of(previous: Tensor | None, drawn: Drawn) -> tuple[Identity, ...]:
    """Return the ticks of a round at which the Byzantine set changed from ``previous``, which is
    None before the first.
    """
    before = [previous, *drawn.masks[:-1]]
    return tuple(
        Identity(drawn.first + place, tuple(int(number) + 1 for number in mask.nonzero()[:, 0]))
        for place, (old, mask) in enumerate(zip(before, drawn.masks, strict=True))
        if old is None or not torch.equal(old, mask)
    )


def point(x: Tensor) -> tuple[float, ...] | None:
    """Return a small model with nine digits per number, enough for single precision; None for a
    larger model.
    """
    return (
        tuple(float(f"{value:.9g}") for value in x.tolist())
        if x.numel() <= PATH_DIMENSIONS
        else None
    )
