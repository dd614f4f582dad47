"""Periodic switching."""

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
    K: int = parameter(minimum=1, help="ticks between two draws; for K = infinity, use static")


@REGISTRY.register("periodic", Parameters, reference="DynaBRO (ICML 2024), Section 6, Periodic(K)")
def periodic(parameters: Parameters, setting: SwitchingSetting) -> Switching:
    """Periodic(K): every K ticks a new Byzantine set of the declared size is drawn uniformly from
    all workers.
    """

    @functools.lru_cache(maxsize=2)
    def drawn(epoch: int) -> Array:
        return subset(setting, epoch)

    check_count(setting)
    return Switching(Mask(lambda t: drawn(t // parameters.K)), setting.byzantine)
