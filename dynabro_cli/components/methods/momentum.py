"""Worker momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.methods._api import REGISTRY, MeansMethod, MethodSetting, State
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    beta: float = parameter(0.9, minimum=0, below=1, help="momentum parameter; alpha = 1 - beta")
    form: str = parameter(
        "ema", choices=("ema", "heavy-ball"), help="with or without the factor 1 - beta"
    )
    start: str = parameter(
        "zero",
        choices=("zero", "gradient"),
        later=True,
        help="m_0 = 0, or m_1 = g_1 as in other libraries (form=ema)",
    )
    byzantine: str = parameter(
        "poisoned",
        choices=("poisoned", "frozen", "reset"),
        later=True,
        help="memory of a worker while it is Byzantine: updated with its attacked gradients, "
        "kept, or set to 0",
    )


@REGISTRY.register(
    "momentum",
    Parameters,
    reference="Karimireddy, He & Jaggi, ICML 2021; DynaBRO (ICML 2024), App. E",
)
def momentum(parameters: Parameters, setting: MethodSetting) -> MeansMethod:
    """Worker momentum: workers send an average of their past gradients.

    m_{t,i} = beta m_{t-1,i} + (1 - beta) g_{t,i} (form=ema), m_{0,i} = 0, and g_t = A(m_{t,1}, ...,
    m_{t,m}). form=heavy-ball omits the factor (1 - beta): the same direction at 1/(1 - beta) times
    the learning rate. start=gradient sets m_{1,i} = g_{1,i}, as form=heavy-ball always does. With
    start=gradient every worker must answer in every round.

    The state is ``momentum`` [m, d]. An attack that enters at the gradient poisons it for about
    1/(1 - beta) rounds, unless Byzantine workers keep their old memory (byzantine=frozen) or
    restart from 0 when they recover (reset).

    Differs from the paper: the paper does not say what recovered workers remember; its Appendix E
    analyses ``poisoned``.
    """
    beta = parameters.beta
    gain = 1 - beta if parameters.form == "ema" else 1.0
    first = 1.0 if parameters.start == "gradient" else gain

    def send(gradients: Tensor, state: State) -> tuple[Tensor, State]:
        past = state.get("momentum")
        if past is None:
            buffer = gradients * first
        elif parameters.byzantine == "frozen":  # the old momentum is still needed
            buffer = (past * beta).add_(gradients, alpha=gain)
        else:
            buffer = past.mul_(beta).add_(gradients, alpha=gain)
        return buffer, {"momentum": buffer}

    def keep(messages: Tensor, state: State) -> State:
        return {"momentum": messages}

    def recall(before: State, after: State, byzantine: Tensor) -> State:
        kept = before.get("momentum", 0) if parameters.byzantine == "frozen" else 0
        return {"momentum": torch.where(byzantine[:, None], kept, after["momentum"])}

    recalled = None if parameters.byzantine == "poisoned" else recall
    return MeansMethod(
        send=send,
        keep=keep,
        recall=recalled,
        remembers=True,
        first_gain=None if first == gain else first,
        by_row=first == gain,
        beta=beta,
    )
