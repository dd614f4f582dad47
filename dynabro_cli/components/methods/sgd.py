"""Stochastic gradient descent."""

from __future__ import annotations

from dynabro_cli.components.methods._api import REGISTRY, MeansMethod, MethodSetting
from dynabro_cli.core.registration import NoParameters


@REGISTRY.register("sgd", reference="DynaBRO (ICML 2024), Section 3.1")
def sgd(_: NoParameters, setting: MethodSetting) -> MeansMethod:
    """SGD on aggregated gradients: g_t = A(g_{t,1}, ..., g_{t,m}). The same as momentum with beta =
    0.
    """
    return MeansMethod()
