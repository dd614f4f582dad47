"""Normalised SGD with worker momentum."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.methods import momentum
from dynabro_cli.components.methods._api import REGISTRY, MeansMethod, MethodSetting, State, senders
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import length

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    beta: float = parameter(0.9, minimum=0, below=1, help="momentum parameter; alpha = 1 - beta")


@REGISTRY.register(
    "nsgdm",
    Parameters,
    reference="Bolatov, Horvath, Takac & Gorbunov, arXiv 2603.12512 (Byz-NSGDM)",
)
def nsgdm(parameters: Parameters, setting: MethodSetting) -> MeansMethod:
    """Byz-NSGDM: worker momentum, and a step of length eta along the aggregate.

    m_{t,i} = beta m_{t-1,i} + (1 - beta) g_{t,i}, m_{0,i} = 0, and g_t = a_t/|a_t| with a_t =
    A(m_{t,1}, ..., m_{t,m}); g_t = 0 if a_t is 0. The paper's chain is nearest-neighbour mixing
    before a rule: --pre nnm.

    The learning rate is the length of a step, so it is not comparable with the rates of other
    methods. The state is ``momentum`` [m, d], as with ``momentum``.

    Differs from the paper: the learning rate does not fall with t unless --lr-drop says so.
    """
    workers = senders(momentum.momentum(momentum.Parameters(beta=parameters.beta), setting))
    return dataclasses.replace(workers, settle=normalised)


def normalised(aggregate: Tensor, state: State) -> tuple[Tensor, State]:
    """Return the aggregate [d] scaled to length 1 (0 if it is 0), and the state unchanged."""
    size = length(aggregate)
    # A quotient, because the factor 1/size overflows for the shortest vectors
    return torch.where(size > 0, aggregate / size, 0).to(aggregate.dtype), state
