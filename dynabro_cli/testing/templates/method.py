"""Momentum at the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.plugins import MeansMethod, MethodSetting, State, method, parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    beta: float = parameter(0.9, minimum=0, below=1, help="momentum parameter")


@method("my-method", Parameters, reference="who, where, which algorithm")
def my_method(parameters: Parameters, setting: MethodSetting) -> MeansMethod:
    """Server momentum: workers send gradients, and the server moves along an average of the
    aggregates.

    g_t = v_t = beta v_{t-1} + (1 - beta) A(g_{t,1}, ..., g_{t,m}), v_0 = 0.
    """

    def settle(aggregate: Tensor, state: State) -> tuple[Tensor, State]:  # [d] -> [d]
        moved = (1 - parameters.beta) * aggregate
        if "velocity" in state:
            moved = moved + parameters.beta * state["velocity"]
        return moved, {"velocity": moved}

    return MeansMethod(settle=settle)
