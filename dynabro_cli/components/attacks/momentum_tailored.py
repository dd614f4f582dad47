"""The dynamic attack of Appendix E, against worker momentum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import (
    BEFORE_MEMORY,
    REGISTRY,
    Attack,
    AttackSetting,
    State,
    replace,
)
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import Late, torch
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor

EXACT = 1e-9
"""Tolerance for the rounding of 1 - beta: a turn this close to a whole number is not shortened."""


@dataclass(frozen=True)
class Parameters:
    lambda_: float = parameter(help="strength: v = lambda (1, ..., 1)")
    beta: float | None = parameter(
        None,
        minimum=0,
        below=1,
        auto=lambda _, setting: setting.beta,
        help="momentum parameter aimed at; auto: the method's",
    )
    schedule: str = parameter(
        "lemma",
        choices=("lemma", "printed"),
        later=True,
        help="sizes v_t: as the lemma needs them, or as printed",
    )


@REGISTRY.register(
    "momentum-tailored", Parameters, reference="DynaBRO (ICML 2024), Appendix E, the dynamic attack"
)
def momentum_tailored(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Momentum-tailored: the shift that keeps the bias of a Byzantine worker's momentum at v in all
    its Byzantine rounds.

    g~_i = g_i + v_t with v_t = v (1 - (1 - alpha) theta_i)/alpha, alpha = 1 - beta, v = lambda (1,
    ..., 1), and theta_i v the bias that worker i's momentum carries from its earlier turns. So v_t
    is v/alpha at the start of a worker's first turn, and v within a turn. Honest workers' theta
    decays by the factor 1 - alpha in each round. With switching=rotating, theta stays in [(5/6)^4,
    1] for every worker from the second epoch on, if alpha <= 1/6 and 1/(3 alpha) is whole (the
    lemma of Appendix E). In the first round of momentum:start=gradient, m_{1,i} = g_{1,i}, and v_1
    = v.

    schedule=printed uses the v_t that the paper prints, for switching=rotating with turns of q =
    floor(1/(3 alpha)) rounds, t = 1, 2, ...: v/alpha at t = q + 1 and 2 q + 1, then v (1 -
    (1-alpha)^(2 q))/alpha if t mod 3 q = 1, and v in all other rounds.

    The state is ``theta`` [m] (and ``gain``, if the first round's momentum has another factor than
    alpha), or ``round`` for schedule=printed. Needs a method with beta, or the attack's own beta=.

    Differs from the paper: the printed schedule boosts at the start of some turns only, and assumes
    m_1 = g_1 (momentum:start=gradient). With it the bias in most turns starts under v and only
    grows towards v, so the lemma does not hold. Momentum starts at 0 by default. schedule=lemma has
    the bias v in every Byzantine round, as the lemma claims, and works with any switching.
    """
    beta = setting.beta if parameters.beta is None else parameters.beta
    if beta is None:
        raise SpecError(
            "attack 'momentum-tailored' needs a momentum parameter to aim at, and the method "
            "has none. "
            "Try: the method momentum:beta=0.9, or 'momentum-tailored:lambda=...,beta=0.9'"
        )
    alpha = 1 - beta
    if parameters.schedule == "printed":
        return _printed(parameters.lambda_, alpha)

    def messages(vectors: Tensor, byzantine: Tensor, state: State) -> Tensor:
        gain = state.get("gain", alpha)
        strength = parameters.lambda_ * (1 - (1 - gain) * state["theta"].to(vectors)) / gain  # [m]
        return replace(vectors, byzantine, vectors + strength[:, None])

    def advance(byzantine: Tensor, state: State) -> State:
        theta = state["theta"].to(byzantine.device)
        later = {"gain": torch.full_like(state["gain"], alpha)} if "gain" in state else {}
        return {"theta": torch.where(byzantine, 1.0, (1 - alpha) * theta)} | later

    def initial() -> State:
        theta = torch.zeros(setting.workers, dtype=torch.float64)
        first = {} if setting.gain is None else {"gain": theta.new_tensor(setting.gain)}
        return {"theta": theta} | first

    start = Late(initial)
    return Attack(start, messages, advance, entries=BEFORE_MEMORY, by_number=True)


def _printed(strength: float, alpha: float) -> Attack:
    """Return the attack with the paper's printed sizes of v_t."""
    turn = max(1, math.floor(1 / (3 * alpha) + EXACT))
    boost = (1 - (1 - alpha) ** (2 * turn)) / alpha

    def messages(vectors: Tensor, byzantine: Tensor, state: State) -> Tensor:
        rounds = state["round"].to(vectors.device)  # t - 1
        first = (rounds < 3 * turn) & (rounds > 0) & (rounds % turn == 0)
        later = (rounds >= 3 * turn) & (rounds % (3 * turn) == 0)
        size = 1 + first.double() * (1 / alpha - 1) + later.double() * (boost - 1)
        return replace(vectors, byzantine, vectors + (strength * size).to(vectors))

    def advance(_: Tensor, state: State) -> State:
        return {"round": state["round"] + 1}

    start = Late(lambda: {"round": torch.zeros((), dtype=torch.int64)})
    return Attack(start, messages, advance, entries=BEFORE_MEMORY)
