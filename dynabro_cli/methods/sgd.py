"""Stochastic gradient descent."""

from __future__ import annotations

from dynabro_cli.components import NoParameters
from dynabro_cli.methods._api import REGISTRY, MeansMethod, MethodSetting


@REGISTRY.register("sgd", reference="DynaBRO (ICML 2024), Section 3.1")
def sgd(_: NoParameters, setting: MethodSetting) -> MeansMethod:
    """SGD on aggregated gradients: g_t = A(g_{t,1}, ..., g_{t,m}). The same as momentum with beta =
    0.
    """
    return MeansMethod()
