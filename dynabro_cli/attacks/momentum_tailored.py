"""The dynamic attack of Appendix E, against worker momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.attacks._api import REGISTRY, Attack, AttackSetting, State, replace
from dynabro_cli.components import parameter
from dynabro_cli.errors import SpecError
from dynabro_cli.lazy import Late, torch

if TYPE_CHECKING:
    from torch import Tensor


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


@REGISTRY.register("momentum-tailored", Parameters, reference="DynaBRO (ICML 2024), Appendix E, the dynamic attack")
def momentum_tailored(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Momentum-tailored: as much shift as keeps the bias of a Byzantine worker's momentum at v in each of its rounds.

    g~_i = g_i + v_t with v_t = v (1 - (1 - alpha) theta_i)/alpha, alpha = 1 - beta, v = lambda (1, ..., 1), and theta_i v the
    bias that worker i's momentum carries from its earlier turns: v/alpha at the start of its first turn, v within a
    turn. Honest workers' theta decays by (1 - alpha) a round. With switching=rotating, theta stays in [(5/6)^4, 1] for
    every worker from the second epoch on, if alpha <= 1/6 and 1/(3 alpha) is whole (the lemma of Appendix E).

    The state is ``theta`` [m]. Needs the method's beta, or beta= of its own.

    Differs from the paper: the printed schedule of v_t boosts at the start of some turns only, and takes m_1 = g_1; here
    momentum starts at 0, and the bias is v at every Byzantine round, as the lemma claims. It serves any switching.
    """
    beta = setting.beta if parameters.beta is None else parameters.beta
    if beta is None:
        raise SpecError(
            "attack 'momentum-tailored' needs the momentum parameter that it aims at, and the method has none; "
            "type --method momentum:beta=0.9, or 'momentum-tailored:lambda=...,beta=0.9'"
        )
    alpha = 1 - beta

    def messages(own: Tensor, byzantine: Tensor, state: State) -> Tensor:
        strength = parameters.lambda_ * (1 - (1 - alpha) * state["theta"].to(own)) / alpha  # [m]
        return replace(own, byzantine, own + strength[:, None])

    def advance(byzantine: Tensor, state: State) -> State:
        theta = state["theta"].to(byzantine.device)
        return {"theta": torch.where(byzantine, 1.0, (1 - alpha) * theta)}

    start = Late(lambda: {"theta": torch.zeros(setting.workers, dtype=torch.float64)})
    return Attack(start, messages, advance, entries=("gradient",), by_number=True)
