"""Static identities."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from dynabro_cli.components import NoParameters
from dynabro_cli.switching._api import (
    REGISTRY,
    Switching,
    SwitchingSetting,
    check_count,
    uniform_subset,
)

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register("static", reference="DynaBRO (ICML 2024), Section 3")
def static(_: NoParameters, setting: SwitchingSetting) -> Switching:
    """Static: the Byzantine set is drawn once, uniformly; the same as periodic:K= with K =
    infinity.
    """
    check_count(setting)

    @functools.cache
    def drawn() -> Tensor:
        return uniform_subset(setting, 0)

    return Switching(lambda t: drawn().clone(), setting.byzantine)
