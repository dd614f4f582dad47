"""Static identities."""

from __future__ import annotations

import functools

from dynabro_cli.components.switching._api import (
    REGISTRY,
    Array,
    Mask,
    Switching,
    SwitchingSetting,
    check_count,
    subset,
)
from dynabro_cli.core.registration import NoParameters


@REGISTRY.register("static", reference="DynaBRO (ICML 2024), Section 3")
def static(_: NoParameters, setting: SwitchingSetting) -> Switching:
    """Static: the Byzantine set is drawn once, uniformly; the same as periodic:K= with K =
    infinity.
    """
    check_count(setting)

    @functools.cache
    def drawn(_epoch: int) -> Array:
        return subset(setting, 0)

    return Switching(Mask(lambda t: drawn(0)), setting.byzantine)
