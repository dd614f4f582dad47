"""ByzantineSGD of Alistarh, Allen-Zhu and Li."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.methods._api import REGISTRY, JudgingMethod, MethodSetting, State
from dynabro_cli.components.methods._filters import (
    EMPTY,
    EMPTY_HELP,
    clean_rows,
    concentration,
    near_median,
    near_middle,
)
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import length

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    noise_bound: float | None = parameter(
        None,
        above=0,
        help="V, the largest noise of a gradient; auto: measured at the start, with 10 gradient "
        "computations of each worker",
    )
    D: float | None = parameter(
        None, above=0, help="the largest |x_t - x_1|; auto: the largest so far"
    )
    threshold_A: float | None = parameter(
        None, above=0, help="threshold of A_i; auto: 4 D V sqrt(T log(16 m T/p))"
    )
    threshold_B: float | None = parameter(
        None, above=0, help="threshold of B_i; auto: 4 V sqrt(T log(16 m T/p))"
    )
    p: float = parameter(
        0.1, above=0, below=1, help="probability that an honest worker is taken for Byzantine"
    )
    empty: str = parameter("restart", choices=EMPTY, help=EMPTY_HELP)


@REGISTRY.register(
    "byzantine-sgd",
    Parameters,
    reference="Alistarh, Allen-Zhu & Li, NeurIPS 2018, Algorithm 1",
)
def byzantine_sgd(parameters: Parameters, setting: MethodSetting) -> JudgingMethod:
    """ByzantineSGD: SGD on the mean of the workers whose whole history agrees with the majority's.

    A_i = sum_{s <= t} <g_{s,i}, x_s - x_1>, B_i = sum_{s <= t} g_{s,i}. A worker stays good while
    |A_i - A_med| <= T_A, |B_i - B_med| <= 2 T_B and |g_{t,i} - g_med| <= 4 V, where A_med is the
    median, and B_med and g_med are the first with more than m/2 workers within T_B and 2 V of them.
    g_t is the mean of the good workers' gradients. T is the budget.

    The state is ``B`` [m, d] and ``start`` (x_1, [d]), ``A`` [m], ``good`` [m], ``far`` (|x - x_1|,
    the largest so far).

    A worker that was Byzantine once never becomes good again, so switching identities uses up the
    good workers. The paper leaves open what happens if no worker or no median vector is left. Here
    g_t = 0. With empty=restart the method starts again in the next round, with all workers and with
    x_t as x_1. With empty=wait the model no longer moves. A worker that sends NaN or Inf is not
    good.

    Differs from the paper: if D is not given, it is the largest |x_s - x_1| so far, because a
    network has no bounded domain. The step is projected only onto the task's domain. p and the T in
    the logarithm are the paper's delta and T.
    """
    m, rounds = setting.workers, setting.budget

    def at(noise: float | None) -> JudgingMethod:
        bound = math.inf if noise is None else noise
        usual = 4 * bound * math.sqrt(rounds * concentration(m, rounds, parameters.p))
        of_sums = usual if parameters.threshold_B is None else parameters.threshold_B

        def judge(messages: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
            if not state:
                state = _beginning(messages, x)
            finite, gradients = clean_rows(messages)
            moved = x - state["start"]
            distance = length(moved)
            far = torch.maximum(state["far"], distance.to(x.dtype))
            # products with x - x_1 may overflow
            unit = moved / torch.where(distance > 0, distance, 1)
            products = state["A"] + (gradients @ unit).double() * distance
            sums = state["B"].add_(gradients)
            if parameters.threshold_A is not None:
                of_products = torch.full_like(distance, parameters.threshold_A)
            else:
                of_products = usual * (
                    far.double()
                    if parameters.D is None
                    else torch.full_like(distance, parameters.D)
                )
            good = state["good"] & finite & near_middle(products, of_products, finite)
            good = (
                good
                & near_median(sums, of_sums, torch.ones_like(good))
                & near_median(gradients, 2 * bound, finite)
            )
            lost = ~good.any() & (parameters.empty == "restart")
            return good, {
                "A": torch.where(lost, 0, products),
                "B": sums.masked_fill_(lost, 0),
                "good": good | lost,
                "far": torch.where(lost, 0, far),
                "start": torch.where(lost, x, state["start"]),
            }

        return JudgingMethod(
            judge=judge,
            wants_noise=parameters.noise_bound is None,
            noise_bound=noise,
            with_measured=(lambda known: at(known.noise))
            if parameters.noise_bound is None
            else None,
        )

    return at(parameters.noise_bound)


def _beginning(messages: Tensor, x: Tensor) -> State:
    """Return the state before the first round."""
    return {
        "A": messages.new_zeros(len(messages), dtype=torch.float64),
        "B": torch.zeros_like(messages),
        "good": torch.ones_like(messages[:, 0], dtype=torch.bool),
        "far": x.new_zeros(()),
        "start": x,
    }
