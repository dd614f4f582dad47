"""Switching that attacks in rounds of a high MLMC level."""

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
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import np
from dynabro_cli.core.registration import parameter


@dataclass(frozen=True)
class Parameters:
    level: int = parameter(
        minimum=0, help="lowest level J of a round in which workers are Byzantine"
    )
    K: int | None = parameter(
        None, minimum=1, help="ticks between two draws of the set; auto: it stays the same"
    )


@REGISTRY.register(
    "on-level",
    Parameters,
    reference="dynabro's own, against Algorithm 1 of DynaBRO (ICML 2024), Section 4, equation (2)",
)
def on_level(parameters: Parameters, setting: SwitchingSetting) -> Switching:
    """On-level: f workers are Byzantine in rounds whose MLMC level J is at least ``level``; all are
    honest in other rounds.

    f is the declared number of Byzantine workers. A correction is multiplied by 2^J, so without the
    fail-safe filter these are the rounds in which an attack does most. They are rare: for level >=
    1 their share is 2^(1 - level) - 2^-jmax. Rounds of a level above jmax have no correction and do
    not count. With K, a new set is drawn uniformly every K ticks, as in periodic. With
    clock=computation and K under 2^J, identities change within such a round (a dynamic round), the
    case that the filter of Algorithm 2 is made for.

    Raises SpecError if the method has no levels, or if ``level`` is above its jmax.
    """
    if setting.jmax is None:
        raise SpecError(
            "switching 'on-level' attacks at a level of MLMC, and the method has none. "
            "Try: the method dynabro, or another switching strategy"
        )
    if parameters.level > setting.jmax:
        raise SpecError(
            f"switching 'on-level': level={parameters.level} never occurs, because the "
            f"method's jmax is {setting.jmax}. "
            f"Try: level={setting.jmax} or less"
        )

    @functools.lru_cache(maxsize=2)
    def drawn(epoch: int) -> Array:
        return subset(setting, epoch)

    def mask(t: int) -> Array:
        return drawn(0 if parameters.K is None else t // parameters.K)

    def in_round(t: int, level: int | None) -> Array:
        attacks = level is not None and level >= parameters.level
        return mask(t) if attacks else np.zeros(setting.workers, dtype=bool)

    check_count(setting)
    return Switching(Mask(mask), in_round=Mask(in_round))
