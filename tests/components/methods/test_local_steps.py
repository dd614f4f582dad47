"""Local steps, by hand and in whole runs on the quadratic, recomputed in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

from dynabro_cli.components.attacks._api import BEFORE_MEMORY
from dynabro_cli.components.methods._api import (
    GatheringMethod,
    Measured,
    Method,
    MethodSetting,
    Plan,
)
from tests.components.methods.made import made
from tests.simulation.reference import (
    ATTACKS,
    A,
    Vectors,
    descend,
    masks,
    noise,
    quadratic,
    trimmed,
)
from tests.tables import each_row

M, F, H, RATE = 5, 2, 3, 0.05


def method(text: str, rate: float = 0.5) -> Method:
    return made(text, MethodSetting(2, 100), Measured(learning_rate=rate))


class Parabola:
    """f(x) = x^2/2 in one dimension, without noise; worker 1 is attacked: its gradients count
    twice.
    """

    def __init__(self) -> None:
        self.x = torch.tensor([4.0])
        self.asked: list[int] = []

    def gradients(self, computation: int, points: Tensor | None = None) -> Tensor:
        self.asked.append(computation)
        return self.x.repeat(2, 1) if points is None else points.clone()

    def large(self, batches: int) -> Tensor:
        raise AssertionError("local steps are made of mini-batches")

    def attacked(self, gradients: Tensor, computation: int) -> Tensor:
        return gradients * torch.tensor([[1.0], [2.0]])


@each_row(
    ("text", "expected"),
    [
        # rate 1/4, worker 0: 4 -> 3 -> 2.25, moved 1.75; worker 1: 4 -> 2 -> 1, moved 3. Over rate
        # H = 1/2: 3.5 and 6
        ("local-steps:H=2,rate=0.25", [3.5, 6.0]),
        ("local-steps:H=2,rate=0.25,sends=difference", [1.75, 3.0]),
        # the server's rate, 1/2: 4 -> 2 -> 1, moved 3; 4 -> 0 -> 0, moved 4
        ("local-steps:H=2", [3.0, 4.0]),
        ("local-steps:H=1", [4.0, 8.0]),
    ],
)
def test_by_hand(text: str, expected: list[float]) -> None:
    built, workers = method(text), Parabola()
    assert isinstance(built, GatheringMethod)
    plan = built.plan(np.random.default_rng(0))
    gathered = built.gather(workers, plan, {})
    assert gathered.vectors[:, 0].tolist() == expected
    assert gathered.attacked
    assert workers.asked == list(range(plan.prefixes[-1]))
    assert workers.x.tolist() == [4.0]


def test_a_round_costs_its_steps() -> None:
    assert method("local-steps:H=7").plan(np.random.default_rng(0)) == Plan(None, (7,))


FIELDS: dict[str, Any] = {
    "workers": M,
    "byzantine": F,
    "learning_rate": RATE,
    "budget": 60,
    "switching": "periodic:K=4",
}


def sent(
    round_: int, x: Vectors, who: list[Vectors], attack: Any, entry: str, difference: bool
) -> Vectors:
    """The messages of the workers, [m, 2]; ``who`` has the Byzantine workers at each step."""
    points = np.tile(x, (M, 1))
    for step in range(H):
        gradients = points @ A + noise(M, round_, step)
        points = points - RATE / 2 * (
            attack(gradients, who[step]) if entry in BEFORE_MEMORY else gradients
        )
    messages = (x - points) / (1 if difference else RATE / 2 * H)
    return messages if entry in BEFORE_MEMORY else attack(messages, who[-1])


@each_row(
    ("attack", "entry", "sends", "clock"),
    [
        ("sf", "gradient", "gradient", "round"),
        ("sf", "message", "difference", "computation"),
        ("ipm", "gradient", "difference", "round"),
        ("ipm", "message", "gradient", "computation"),
        ("alie:z=1", "computation", "gradient", "round"),
        ("ipm", "computation", "difference", "computation"),
        ("alie:z=1", "gradient", "gradient", "computation"),
        ("alie:z=1", "message", "difference", "round"),
    ],
)  # every two values of two columns meet
def test_whole_runs(attack: str, entry: str, sends: str, clock: str) -> None:
    outcome = quadratic(
        method=f"local-steps:H={H},rate={RATE / 2},sends={sends}",
        attack=attack,
        attack_entry=entry,
        aggregator="cwtm",
        clock=clock,
        **FIELDS,
    )
    ticks = masks("periodic:K=4", M, F, 60)

    def direction(round_: int, x: Vectors) -> Vectors:
        who = [ticks[round_] if clock == "round" else ticks[round_ * H + step] for step in range(H)]
        return trimmed(sent(round_, x, who, ATTACKS[attack], entry, sends == "difference"), F)

    gaps, norms = descend(direction, 20, RATE)
    assert_allclose(outcome.gaps, gaps, rtol=1e-9)
    assert_allclose(outcome.norms, norms, rtol=1e-9)
    assert {item.cost for item in outcome.rounds} == {H}
    assert [item.budget for item in outcome.rounds] == list(range(H, 61, H))
    assert any(item.dynamic for item in outcome.rounds) == (clock == "computation")


@pytest.mark.thorough
def test_one_step_is_sgd() -> None:
    one, sgd = (quadratic(method=text, **FIELDS) for text in ("local-steps:H=1", "sgd"))
    assert_allclose(one.gaps, sgd.gaps, rtol=1e-12)
    assert one.rounds[-1].budget == sgd.rounds[-1].budget == 60


def test_fedavg() -> None:
    """Without attack, the mean of the workers' models: x - 1 (x - mean x_i), and the same by the
    server's rate H times.
    """
    fields = FIELDS | {"attack": "none", "aggregator": "mean"}
    averaged = quadratic(
        method=f"local-steps:H={H},rate={RATE},sends=difference", **fields | {"learning_rate": 1.0}
    )
    stepped = quadratic(
        method=f"local-steps:H={H},rate={RATE}", **fields | {"learning_rate": RATE * H}
    )
    assert_allclose(averaged.gaps, stepped.gaps, rtol=1e-9)
