"""Robust federated averaging: a few smoothed Weiszfeld steps from 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    stateless,
    tolerated,
)
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import lengths
from dynabro_cli.core.vectors.means import weighted

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    T: int = parameter(3, minimum=1, help="Weiszfeld steps")
    nu: float = parameter(
        0.1, above=0, help="smoothing: shorter distances count as this, in the messages' own units"
    )


@REGISTRY.register(
    "rfa",
    Parameters,
    reference="Pillutla, Kakade & Harchaoui, IEEE TSP 2022 (Algorithm 2); start and smoothing: "
    "ByzFL 0.0.11",
)
def rfa(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Robust federated averaging (RFA): T steps of the smoothed Weiszfeld algorithm towards the
    geometric median.

    T times z <- sum_i w_i g_i with w_i proportional to 1/max(|g_i - z|, nu), from z = 0. The first
    step is the mean with weights 1/max(|g_i|, nu). ``gm`` continues until it reaches the geometric
    median itself.

    No kappa: after so few steps the result still depends on the start. The rule is not equivariant
    under scaling, because nu is absolute, nor under translation, because z starts at 0. Costs O(T m
    d). Raises SpecError if 2f >= m with f the declared number of Byzantine workers, which the rule
    itself does not use.

    Differs from the paper: Pillutla et al. start at the mean.
    """
    tolerated("rfa", None, setting)

    def rule(messages: Tensor) -> Tensor:
        z = torch.zeros_like(messages[0])  # [d]
        for _ in range(parameters.T):
            # [m]; a difference may overflow, and so may its length
            halves = lengths(messages / 2 - z / 2)
            smoothed = halves.clamp(parameters.nu / 2, torch.finfo(halves.dtype).max)
            z = weighted(messages, smoothed.min() / smoothed)
        return z

    return stateless(rule, None)
