"""Worker momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components import parameter
from dynabro_cli.footprint import copies
from dynabro_cli.methods._api import REGISTRY, Method, MethodSetting, State, direct_aggregate, one_batch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    beta: float = parameter(0.9, minimum=0, below=1, help="momentum parameter; alpha = 1 - beta")
    form: str = parameter("ema", choices=("ema", "heavy-ball"), help="with or without the factor 1 - beta")


@REGISTRY.register(
    "momentum", Parameters, reference="Karimireddy, He & Jaggi, ICML 2021; DynaBRO (ICML 2024), App. E", footprint=copies(1)
)
def momentum(parameters: Parameters, setting: MethodSetting) -> Method:
    """Worker momentum: workers send an average of their past gradients.

    m_{t,i} = beta m_{t-1,i} + (1 - beta) g_{t,i} (form=ema), m_{0,i} = 0, and g_t = A(m_{t,1}, ..., m_{t,m}). form=heavy-ball
    omits the factor (1 - beta): the same direction at 1/(1 - beta) times the learning rate.

    The state is ``momentum`` [m, d]. An attack that enters at the gradient poisons it for about 1/(1 - beta) rounds.
    """
    beta = parameters.beta
    gain = 1 - beta if parameters.form == "ema" else 1.0

    def send(gradients: Tensor, state: State) -> tuple[Tensor, State]:
        past = state.get("momentum")
        buffer = gradients * gain if past is None else past.mul_(beta).add_(gradients, alpha=gain)
        return buffer, {"momentum": buffer}

    def keep(messages: Tensor, state: State) -> State:
        return {"momentum": messages}

    return Method(one_batch, send, keep, direct_aggregate, beta=beta, remembers=True, by_row=True)
