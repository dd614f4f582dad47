"""No attack."""

from __future__ import annotations

from dynabro_cli.components.attacks._api import REGISTRY, Attack, AttackSetting, memoryless
from dynabro_cli.core.registration import NoParameters


@REGISTRY.register("none", reference="the baseline without attack")
def none(_: NoParameters, setting: AttackSetting) -> Attack:
    """No attack: the Byzantine workers follow the protocol."""
    return memoryless(lambda vectors, byzantine: vectors)._replace(acts=False)
