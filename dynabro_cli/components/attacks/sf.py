"""Sign flip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import REGISTRY, Attack, AttackSetting, memoryless
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    negates: str = parameter(
        "vector",
        choices=("vector", "gradient"),
        later=True,
        of_memory=True,
        help="the vector at attack_entry (with attack_entry=message or state, the worker's "
        "momentum), or the worker's gradient",
    )


@REGISTRY.register(
    "sf",
    Parameters,
    reference="Allen-Zhu, Ebrahimianghazani, Li & Alistarh, ICLR 2021; DynaBRO (ICML 2024), App. J",
)
def sf(parameters: Parameters, _: AttackSetting) -> Attack:
    """Sign flip (SF): each Byzantine worker computes its own stochastic gradient and returns its
    negative.

    g~_i = -g_i. (Sending minus the mean of the honest gradients is another attack: ipm:epsilon=1.)

    With worker momentum it matters what is negated and what is remembered. The three readings, for
    a worker i that is Byzantine in round t and has computed the gradient g_{t,i}:

    - attack_entry=gradient (the default): m_{t,i} = beta m_{t-1,i} - (1 - beta) g_{t,i}, which is
      sent and remembered.
    - attack_entry=state: -(beta m_{t-1,i} + (1 - beta) g_{t,i}) is sent and remembered.
    - attack_entry=state with negates=gradient: m_{t,i} = -g_{t,i} is sent and remembered, as the
      paper's words say. A worker that turns honest starts from an undamped -g, which outweighs its
      new gradients until beta^k < 1/2, for 7 rounds with beta = 0.9 and 69 with 0.99.

    With attack_entry=message the worker sends what it sends with ``state``, and remembers its
    honest momentum. Without momentum all of these are equal.
    """

    def messages(vectors: Tensor, byzantine: Tensor) -> Tensor:
        # one pass over the vectors, not one to flip and one to choose
        signs = torch.where(byzantine, -1, 1).to(vectors.dtype)
        return vectors * signs[:, None]

    return memoryless(messages)._replace(of_gradients=parameters.negates == "gradient")
