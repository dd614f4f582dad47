"""Switching to escape a rule that has learnt."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.switching._api import (
    REGISTRY,
    Follow,
    State,
    Switching,
    SwitchingSetting,
    check_count,
    uniform_subset,
)
from dynabro_cli.core.lazy import Late, torch
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    below: float = parameter(
        0.5, above=0, help="acceptance ratio under which messages count as rejected"
    )
    patience: int = parameter(
        10, minimum=1, help="rounds in a row with rejected messages, after which a new set is drawn"
    )


@REGISTRY.register("adaptive", Parameters, reference="dynabro's own")
def adaptive(parameters: Parameters, setting: SwitchingSetting) -> Switching:
    """Adaptive: the adversary changes identity when the server has learnt to reject it.

    f workers, f the declared number, are drawn uniformly and stay Byzantine until the acceptance
    ratio of their messages was under ``below`` in ``patience`` rounds in a row. Then a new set is
    drawn, and the count restarts at 0. The acceptance ratio is the weight of the Byzantine messages
    in the aggregate, divided by their share of the messages: 1 means plain averaging, 0 means that
    the messages are ignored. A round in which no Byzantine message was sent does not count.

    The ratio is measured in every round. This costs two more aggregations, and the run waits for
    it. The schedule depends on the run, and so on its method, rule and rounding; the table
    identities stores who was Byzantine. The strategy counts rounds, so clock=computation is
    refused.

    The state is ``draws``, the number of sets drawn before the current one, and ``rejected``, the
    number of rounds in a row.
    """

    @functools.lru_cache(maxsize=2)
    def drawn(number: int) -> Tensor:
        return uniform_subset(setting, number)

    def learn(state: State, acceptance: float | None) -> State:
        if acceptance is None:
            return state
        rejected = int(state["rejected"]) + 1 if acceptance < parameters.below else 0
        moves = rejected >= parameters.patience
        return {
            "draws": state["draws"] + int(moves),
            "rejected": torch.tensor(0 if moves else rejected),
        }

    follow = Follow(
        initial=Late(lambda: {"draws": torch.tensor(0), "rejected": torch.tensor(0)}),
        mask=lambda state: drawn(int(state["draws"])).clone(),
        learn=learn,
    )
    check_count(setting)
    return Switching(lambda _: drawn(0).clone(), setting.byzantine, follow=follow, kept=True)
