"""Records of rounds, until they are read from the device, and their events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.components.methods._api import Plan
from dynabro_cli.core.events import Identity, Round, Totals
from dynabro_cli.simulation.round.identities import Drawn

PATH_DIMENSIONS = 3
"""Largest dimension of a model whose points are recorded, for plots."""


class Numbers(NamedTuple):
    """The numbers of a round, on the device; None if a number is not measured."""

    gradient_norm: Tensor | None
    aggregation_error: Tensor | None
    learning_rate: Tensor | None
    accepted: Tensor | None
    acceptance: Tensor | None
    squared_gradient: Tensor | None


class Record(NamedTuple):
    """A round; its numbers are read in batches, so that no round waits for the device."""

    round: int
    budget: int
    plan: Plan
    dynamic: bool
    drawn: Drawn
    numbers: Numbers
    changes: tuple[Identity, ...]


def round_event(
    record: Record,
    norm: float,
    error: float | None,
    rate: float,
    accepted: bool | None,
    acceptance: float | None,
) -> Round:
    return Round(
        round=record.round,
        budget=record.budget,
        level=record.plan.level,
        cost=record.plan.prefixes[-1],
        byzantine=record.drawn.most,
        switched=record.drawn.changes > 0,
        dynamic=record.dynamic,
        accepted=accepted,
        learning_rate=rate,
        gradient_norm=norm,
        aggregation_error=error,
        acceptance=acceptance,
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


def read(values: Sequence[Tensor | None]) -> list[float | None]:
    """Read numbers with one transfer from the device."""
    tensors = [value for value in values if value is not None]
    numbers = iter(torch.stack(tensors).double().tolist() if tensors else [])
    return [None if value is None else next(numbers) for value in values]
