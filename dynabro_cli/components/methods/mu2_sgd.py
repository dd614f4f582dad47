"""mu^2-SGD: corrected momentum of the workers, at averaged query points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.methods._api import (
    REGISTRY,
    Computing,
    Gathered,
    GatheringMethod,
    MethodSetting,
    Plan,
    State,
)
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 0.01
"""Lower limit of beta_t and gamma_t if they fall with t, as in the authors' code."""


@dataclass(frozen=True)
class Parameters:
    beta: float | None = parameter(
        None,
        above=0,
        maximum=1,
        help="weight of a fresh gradient in the corrected momentum; auto: 1/t, at least 0.01",
    )
    gamma: float | None = parameter(
        None,
        above=0,
        maximum=1,
        help="weight of w_{t+1} in the query point x_{t+1}; auto: 2/(t + 1), at least 0.01",
    )


@REGISTRY.register(
    "mu2-sgd",
    Parameters,
    reference="Dahan & Levy, ICML 2024, arXiv 2405.14759; Levy, arXiv 2304.04172 (mu^2-SGD)",
)
def mu2_sgd(parameters: Parameters, setting: MethodSetting) -> GatheringMethod:
    """mu^2-SGD: workers correct their momentum by a gradient at the last query point; the server
    averages query points.

    d_{t,i} = g_{t,i} + (1 - beta_t) (d_{t-1,i} - g~_{t,i}), where g_{t,i} and g~_{t,i} are
    gradients of the same mini-batch at x_t and x_{t-1}, and d_{1,i} = g_{1,i}. With a_t =
    A(d_{t,1}, ..., d_{t,m}): w_{t+1} = w_t - eta a_t, w_1 = x_1, and x_{t+1} = (1 - gamma_t) x_t +
    gamma_t w_{t+1}. gamma_t = 2/(t + 1) makes x_{t+1} the average of w_2, ..., w_{t+1} with weights
    1, ..., t. A round costs 2 computations, the first round 1. The evaluated model is x_t.

    An attack on gradients acts on both gradients, so it enters the memory through the change of one
    round. The state is ``d`` [m, d], ``x`` (x_{t-1}), ``lag`` ((x_t - w_t)/eta) and ``t``.

    Differs from the paper: w_t moves by eta, not by eta t. beta_t and gamma_t are at least 0.01, as
    in the authors' code (which also rounds them to three digits). Weight decay acts on x_t, and a
    drop of the learning rate shortens x_t - w_t.
    """
    beta, gamma = parameters.beta, parameters.gamma

    def gather(workers: Computing, plan: Plan, state: State) -> Gathered:
        here = workers.x.clone()
        if not state:
            gradients = workers.gradients(0)
            start = {
                "x": here,
                "lag": torch.zeros_like(here),
                "t": torch.ones((), dtype=torch.int64, device=here.device),
            }
            momentum = workers.attacked(gradients, 0)
            return Gathered(momentum, start | {"d": momentum}, True, gradients)
        before = workers.attacked(workers.gradients(0, state["x"]), 0)
        gradients = workers.gradients(0)
        t = state["t"] + 1
        kept = 1 - (falling(1, t) if beta is None else beta)
        momentum = workers.attacked(gradients, 1) + (kept * (state["d"] - before)).to(here.dtype)
        return Gathered(
            momentum, {"x": here, "lag": state["lag"], "t": t, "d": momentum}, True, gradients
        )

    def settle(aggregate: Tensor, state: State) -> tuple[Tensor, State]:
        # x_{t+1} - x_t = gamma (w_{t+1} - x_t) = -eta gamma (a_t + lag_t)
        share = falling(2, state["t"], 1) if gamma is None else gamma
        direction = (share * (aggregate + state["lag"])).to(aggregate.dtype)
        return direction, state | {"lag": state["lag"] + aggregate - direction}

    def keep(messages: Tensor, state: State) -> State:
        return state | {"d": messages}

    return GatheringMethod(
        plan=lambda _: Plan(None, (2,)),
        first=Plan(None, (1,)),
        gather=gather,
        settle=settle,
        keep=keep,
        remembers=True,
    )


def falling(above: int, t: Tensor, more: int = 0) -> Tensor:
    """Return above/(t + more), at least 0.01, in double precision."""
    return (above / (t + more).double()).clamp_min(LEAST)
