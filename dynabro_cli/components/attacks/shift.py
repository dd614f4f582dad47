"""The static attack of Appendix E."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components.attacks._api import REGISTRY, Attack, AttackSetting, memoryless, replace
from dynabro_cli.core.registration import parameter


@dataclass(frozen=True)
class Parameters:
    lambda_: float = parameter(help="strength: v = lambda (1, ..., 1)")


@REGISTRY.register(
    "shift", Parameters, reference="DynaBRO (ICML 2024), Appendix E, the static attack"
)
def shift(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Shift: a Byzantine worker adds a fixed vector to its own gradient.

    g~_i = g_i + v, v = lambda (1, ..., 1).
    """
    return memoryless(
        lambda vectors, byzantine: replace(vectors, byzantine, vectors + parameters.lambda_)
    )
