"""Switching that learns when to be honest."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
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

PATTERNS: tuple[Callable[[int, int, int], bool], ...] = (
    lambda place, block, number: True,
    lambda place, block, number: place % 2 == 0,
    lambda place, block, number: 2 * place < block,
    lambda place, block, number: number % 2 == place % 2,
    lambda place, block, number: False,
)
"""Patterns of on and off, in the order of their first trials. Each says if the adversary's worker
``number`` = 0, ..., f - 1 attacks in round ``place`` = 0, ..., ``block`` - 1 of a block.
"""


@dataclass(frozen=True)
class Parameters:
    block: int = parameter(10, minimum=2, help="rounds for which a pattern is played")


@REGISTRY.register(
    "evade",
    Parameters,
    reference="UCB1: Auer, Cesa-Bianchi & Fischer, Machine Learning 47, 2002 (Figure 1); idea: "
    "Liu, Liu, Ni, Zhang, Wei & Hossain, IEEE Communications Letters 30, 2026",
)
def evade(parameters: Parameters, setting: SwitchingSetting) -> Switching:
    """Evade: the adversary learns by trial when its workers attack and when they are honest.

    f workers, f the declared number, are drawn uniformly once. For each block of ``block`` rounds
    the adversary chooses one of five patterns: all attack in every round; all in every other round;
    all in the first half of the block; every second of them in even rounds and the others in odd
    rounds; none attacks.

    The choice is UCB1. Each pattern is tried once, in this order. Then pattern j with the largest

        mean_j + sqrt(2 ln n/n_j)

    is played, where n is the number of blocks so far, n_j of them with pattern j, and mean_j the
    mean of their rewards; ties go to the first. The reward of a block is the mean over its rounds
    of min(1, a_t) k_t/f: k_t workers attack in round t, and a_t is the acceptance ratio of their
    messages (see ``adaptive``; 0 if none was sent). It is the number of accepted malicious messages
    as a share of the largest possible one, and so in [0, 1].

    As with ``adaptive``, the ratio is measured in every round, the table identities stores who was
    Byzantine, and clock=computation is refused.

    The state is ``plays`` and ``rewards``, the number of blocks and the sum of rewards of each
    pattern, and ``place`` and ``gained``, the round within the block and its rewards so far.

    Differs from the paper: its adversary is a partially observable Markov decision process, solved
    online by Monte Carlo tree search against a server with reputations. Only the abstract was
    available, which does not define states, observations or rewards. This is the simplest strategy
    that alternates between malicious and honest by what it has learnt, not the paper's. It sees
    acceptance, but neither the loss nor harm that lasts, such as a poisoned momentum.
    """
    f, block = setting.byzantine, parameters.block
    patterns = len(PATTERNS)
    check_count(setting)

    @functools.cache
    def drawn() -> Tensor:
        return uniform_subset(setting, 0)

    def mask(state: State) -> Tensor:
        attacks = PATTERNS[upper_confidence(state["plays"].tolist(), state["rewards"].tolist())]
        place = int(state["place"])
        chosen = drawn().clone()
        chosen[drawn()] = torch.tensor(
            [attacks(place, block, number) for number in range(f)], dtype=torch.bool
        )
        return chosen

    def learn(state: State, acceptance: float | None) -> State:
        # a comparison, because the ratio may be NaN
        accepted = min(acceptance, 1.0) if acceptance is not None and acceptance > 0 else 0.0
        share = int(mask(state).sum()) / max(1, f)
        place, gained = state["place"] + 1, state["gained"] + accepted * share
        if int(place) < block:
            return {**state, "place": place, "gained": gained}
        plays, rewards = state["plays"].clone(), state["rewards"].clone()
        played = upper_confidence(plays.tolist(), rewards.tolist())
        plays[played] += 1
        rewards[played] += gained / block
        return {
            "plays": plays,
            "rewards": rewards,
            "place": torch.zeros_like(place),
            "gained": torch.zeros_like(gained),
        }

    initial = Late(
        lambda: {
            "plays": torch.zeros(patterns, dtype=torch.int64),
            "rewards": torch.zeros(patterns, dtype=torch.float64),
            "place": torch.zeros((), dtype=torch.int64),
            "gained": torch.zeros((), dtype=torch.float64),
        }
    )
    return Switching(lambda _: mask(dict(initial)), follow=Follow(initial, mask, learn), kept=True)


def upper_confidence(plays: Sequence[int], rewards: Sequence[float]) -> int:
    """Return UCB1's choice: the first arm that was not played yet, or else the first with the
    largest upper confidence bound.

    Args:
        plays: The number of plays of each arm.
        rewards: The sum of rewards, each in [0, 1], of each arm.
    """
    if 0 in plays:
        return plays.index(0)
    exploration = 2 * math.log(sum(plays))
    bounds = [
        reward / count + math.sqrt(exploration / count)
        for count, reward in zip(plays, rewards, strict=True)
    ]
    return bounds.index(max(bounds))
