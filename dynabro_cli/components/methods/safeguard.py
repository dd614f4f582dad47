"""SafeguardSGD of Allen-Zhu, Ebrahimian, Li and Alistarh."""

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
)
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor


def usual_window(rounds: int, power: float) -> int:
    """Return T^power rounds, rounded up."""
    window: int = math.ceil(rounds**power - 1e-9)
    return window


@dataclass(frozen=True)
class Parameters:
    guards: str = parameter(
        "double", choices=("double", "single"), help="two windows, or only the short one"
    )
    T0: int | None = parameter(
        None,
        minimum=1,
        auto=lambda block, setting: _short(block, setting),
        help="short window, in rounds; auto: sqrt(T)",
    )
    T1: int | None = parameter(
        None,
        minimum=1,
        auto=lambda block, setting: None if block.guards == "single" else _long(block, setting),
        help="long window, in rounds; auto: T^(5/8)",
    )
    threshold0: float | None = parameter(
        None, above=0, help="threshold of B_i; auto: 8 V/m sqrt(T0 log(16 m T/p))"
    )
    threshold1: float | None = parameter(
        None, above=0, help="threshold of A_i; auto: 8 V/m sqrt(T1 log(16 m T/p))"
    )
    noise_bound: float | None = parameter(
        None,
        above=0,
        help="V, the largest noise of a gradient; auto: measured at the start, with 10 gradient "
        "computations of each worker",
    )
    scale: float = parameter(1.0, above=0, help="multiplies both thresholds if they are auto")
    p: float = parameter(
        0.1, above=0, below=1, help="probability that an honest worker is taken for Byzantine"
    )
    reset: str = parameter(
        "window",
        choices=("window", "never"),
        help="time when all workers are good again: at the end of the longest window, or never",
    )
    step: str = parameter(
        "after",
        choices=("after", "before"),
        help="good workers after this round's judgement, or before it",
    )
    empty: str = parameter("restart", choices=EMPTY, help=EMPTY_HELP)


def _short(block: Parameters, setting: MethodSetting) -> int:
    """Return the short window if T0 is not given; at most the long window."""
    usual = usual_window(setting.budget, 1 / 2)
    return min(usual, block.T1 or usual)


def _long(block: Parameters, setting: MethodSetting) -> int:
    """Return the long window if T1 is not given; at least the short window."""
    return max(usual_window(setting.budget, 5 / 8), block.T0 or 0)


@REGISTRY.register(
    "safeguard",
    Parameters,
    reference="Allen-Zhu, Ebrahimian, Li & Alistarh, ICLR 2021, Algorithms 1 and 2",
)
def safeguard(parameters: Parameters, setting: MethodSetting) -> JudgingMethod:
    """SafeguardSGD: SGD on the mean of the workers whose sum over a window of rounds agrees with
    the majority's sum.

    B_i = sum_s g_{s,i}/|good_s| over the rounds since the last multiple of T0, A_i over those since
    the last of T1. A worker stays good while |B_i - B_med| <= 2 threshold0 and |A_i - A_med| <= 2
    threshold1, where B_med is the first B_i of a good worker with more than m/2 good workers within
    threshold0 (A_med likewise). guards=single has only B_i. g_t is the mean of the good workers'
    gradients. The windows' defaults follow Theorem 2.3, where eps ~ T^-1/4: T0 ~ 1/eta ~ sqrt(T),
    T1 ~ 1/(eta sqrt(eps)) ~ T^(5/8); T is the budget. Thresholds follow Lemma 4.2, which is
    generous. The paper's experiments choose thresholds by an earlier run; here ``scale`` serves
    this purpose.

    The state is ``B`` and ``A`` [m, d], ``good`` [m] and ``age``, the rounds since the windows
    began.

    A worker that was Byzantine is good again only at the end of the longest window (ID
    relabelling). The paper leaves open what happens if no worker or no median vector is left. Here
    g_t = 0. With empty=restart new windows begin in the next round, with all workers. With
    empty=wait the model does not move until the end of the window. A worker that sends NaN or Inf
    is not good.

    Raises SpecError if T1 is given with guards=single, or is under T0.

    Differs from the paper: g_t is the mean over the workers that are good after this round's
    judgement. (step=before is exactly Algorithm 1, which assumes that no gradient is farther than V
    from the true one, because that would be noticed at once.) All workers are good again at the end
    of the longest window (reset=never is Algorithm 1). The Gaussian noise that helps to leave
    saddle points is not added. Lemma 4.2's threshold is for sums that are not divided by |good_s|;
    here the threshold is divided by m, too.
    """
    m, rounds = setting.workers, setting.budget
    double = parameters.guards == "double"
    short = parameters.T0 or _short(parameters, setting)
    long = (parameters.T1 or _long(parameters, setting)) if double else short
    if not double and parameters.T1 is not None:
        raise SpecError(
            f"method 'safeguard': guards=single has one window, T0, and T1={parameters.T1} is "
            "given; leave T1 out"
        )
    if long < short:
        raise SpecError(
            f"method 'safeguard': T1={long} is under T0={short}; T1 must be at least T0: type "
            f"T1={short}"
        )
    wants_noise = parameters.noise_bound is None and None in (
        parameters.threshold0,
        parameters.threshold1 if double else 0.0,
    )

    def at(noise: float | None) -> JudgingMethod:
        bound = math.inf if noise is None else noise
        unit = 8 * parameters.scale * bound / m * math.sqrt(concentration(m, rounds, parameters.p))
        guards = {"B": (short, parameters.threshold0 or unit * math.sqrt(short))}
        if double:
            guards["A"] = (long, parameters.threshold1 or unit * math.sqrt(long))

        def judge(messages: Tensor, _: Tensor, state: State) -> tuple[Tensor, State]:
            if not state:
                state = {name: torch.zeros_like(messages) for name in guards}
                state["good"] = torch.ones_like(messages[:, 0], dtype=torch.bool)
                state["age"] = torch.zeros_like(messages[0, 0], dtype=torch.int64)
            age = state["age"]
            begins = (age % long == 0) if parameters.reset == "window" else age == 0
            before = state["good"] | begins
            finite, gradients = clean_rows(messages)
            voters = before & finite
            shares = gradients / before.sum().clamp_min(1)
            following, after = {}, voters
            for name, (window, threshold) in guards.items():
                following[name] = state[name].masked_fill_(age % window == 0, 0).add_(shares)
                after = after & near_median(following[name], threshold, voters)
            lost = ~after.any() & (parameters.empty == "restart")
            following |= {"good": after, "age": torch.where(lost, 0, age + 1)}
            return voters if parameters.step == "before" else after, following

        return JudgingMethod(
            judge=judge,
            wants_noise=wants_noise,
            noise_bound=noise if wants_noise or parameters.noise_bound is not None else None,
            with_measured=(lambda known: at(known.noise))
            if parameters.noise_bound is None
            else None,
        )

    return at(parameters.noise_bound)
