"""Delayed momentum aggregation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from dynabro_cli.components.methods import momentum
from dynabro_cli.components.methods._api import REGISTRY, MeansMethod, MethodSetting, senders
from dynabro_cli.core.registration import parameter


@dataclass(frozen=True)
class Parameters:
    beta: float = parameter(0.9, minimum=0, below=1, help="momentum parameter; alpha = 1 - beta")


@REGISTRY.register(
    "demoa", Parameters, reference="Otsuka, Takezawa & Yamada, ICML 2026, arXiv 2509.02970 (DeMoA)"
)
def demoa(parameters: Parameters, setting: MethodSetting) -> MeansMethod:
    """DeMoA: the server aggregates the last momentum of every worker, also of the workers that do
    not answer in the round.

    With --participation below 1, worker i answers in the rounds S_i: m_{t,i} = beta m_{t-1,i} + (1
    - beta) g_{t,i} for t in S_i, else m_{t,i} = m_{t-1,i}. g_t = A(m_{t,1}, ..., m_{t,m}) over all
    m workers, so for the rule Byzantine workers stay a minority even if most workers that answer
    are Byzantine. If all workers answer, the method is ``momentum``.

    The state is ``momentum`` [m, d], the workers' memory, and ``received`` [m, d], the last message
    of each worker. The two differ if an attack changes only messages. A message that a worker sent
    while it was Byzantine counts until it answers again. The aggregation error is the distance from
    the mean of the last messages of the workers that are honest in the round.

    Differs from the paper: in each round n = ceil(participation m) workers answer, while the paper
    draws each worker with probability p. m_{0,i} = 0.
    """
    workers = senders(momentum.momentum(momentum.Parameters(beta=parameters.beta), setting))
    return dataclasses.replace(workers, delayed=True)
