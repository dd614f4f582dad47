"""Switching in the middle of a round."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from dynabro_cli.components.switching._api import (
    REGISTRY,
    Array,
    Mask,
    Switching,
    SwitchingSetting,
    check_count,
    subset,
)
from dynabro_cli.core.registration import parameter


@dataclass(frozen=True)
class Parameters:
    K: int = parameter(
        minimum=1, help="rounds from one change to the next: one round in K is dynamic"
    )


@REGISTRY.register(
    "mid-round",
    Parameters,
    reference="dynabro's own, for the dynamic rounds of DynaBRO (ICML 2024), Theorem 4.1",
)
def mid_round(parameters: Parameters, setting: SwitchingSetting) -> Switching:
    """Mid-round: as periodic, but with clock=computation every change comes in the middle of a
    round.

    In rounds K, 2K, ... the set of the declared size f is redrawn uniformly after half of the
    gradient computations. So floor(T/K) of T rounds are dynamic, whatever their levels; a round of
    one computation cannot be, and its change comes after it. The aggregate of level J - 1 then
    belongs to one set, and the aggregate of level J to two, which is what the fail-safe filter of
    Algorithm 2 is made for.

    With clock=round, the same sets change between rounds.
    """

    @functools.lru_cache(maxsize=2)
    def drawn(epoch: int) -> Array:
        return subset(setting, epoch)

    def within(number: int, computation: int, count: int) -> Array:
        return drawn((number + (2 * computation >= count)) // parameters.K)

    check_count(setting)
    return Switching(
        Mask(lambda t: drawn(t // parameters.K)), setting.byzantine, within=Mask(within)
    )
