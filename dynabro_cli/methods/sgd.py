"""Stochastic gradient descent."""

from __future__ import annotations

from dynabro_cli.components import NoParameters
from dynabro_cli.methods._api import (
    REGISTRY,
    Method,
    MethodSetting,
    direct_aggregate,
    keep_nothing,
    one_batch,
    send_gradients,
)


@REGISTRY.register("sgd", reference="DynaBRO (ICML 2024), Section 3.1")
def sgd(_: NoParameters, setting: MethodSetting) -> Method:
    """SGD on aggregated gradients: g_t = A(g_{t,1}, ..., g_{t,m}). It is momentum with beta = 0."""
    return Method(one_batch, send_gradients, keep_nothing, direct_aggregate)
