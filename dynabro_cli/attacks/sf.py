"""Sign flip."""

from __future__ import annotations

from dynabro_cli.attacks._api import REGISTRY, Attack, AttackSetting, memoryless, replace
from dynabro_cli.components import NoParameters


@REGISTRY.register("sf", reference="Allen-Zhu, Ebrahimianghazani, Li & Alistarh, ICLR 2021; DynaBRO (ICML 2024), App. J")
def sf(_: NoParameters, setting: AttackSetting) -> Attack:
    """Sign flip (SF): each Byzantine worker computes its own stochastic gradient and returns its negative.

    g~_i = -g_i. (Sending minus the mean of the honest gradients is another attack: ipm:epsilon=1.)
    """
    return memoryless(lambda own, byzantine: replace(own, byzantine, -own))
