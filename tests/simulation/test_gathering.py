"""Attacks on the vectors of methods that gather them themselves: by whom, when, and how often the
attack moves on.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.attacks._api import Attack
from dynabro_cli.components.switching._api import SwitchingSetting
from dynabro_cli.core.events import Finished
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation import setup
from dynabro_cli.simulation.loop import Simulation
from dynabro_cli.simulation.round.gathering import of_worker
from dynabro_cli.simulation.round.parts import State

M = 5


def moves(**fields: Any) -> tuple[list[list[bool]], list[list[bool]]]:
    """Run ten computations with an attack that notes whom it attacks; return those masks, and those
    that it moved on with.
    """
    attacked: list[list[bool]] = []
    moved: list[list[bool]] = []

    def messages(own: Tensor, byzantine: Tensor, _: dict[str, Tensor]) -> Tensor:
        attacked.append(byzantine.tolist())
        return torch.where(byzantine[:, None], -own, own)

    def advance(byzantine: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        moved.append(byzantine.tolist())
        return state

    run = resolve(RunSpec(task="quadratic", workers=M, byzantine=2, budget=10, **fields))
    made = setup._prepare(run, torch.device("cpu"), "off")[0]
    simulation = Simulation(
        dataclasses.replace(made._parts, attack=Attack({}, messages, advance)), State()
    )
    with torch.no_grad():
        list(simulation.events())
    return attacked, moved


def masks(run: dict[str, Any], count: int) -> list[list[bool]]:
    switching = resolve(RunSpec(task="quadratic", workers=M, byzantine=2, **run)).switching
    strategy = switching.build(SwitchingSetting(M, 2, 0))
    return [strategy.mask(tick).tolist() for tick in range(count)]


@pytest.mark.usefixtures("no_probe")
@pytest.mark.parametrize("clock", ["round", "computation"])
def test_an_attack_on_computations_moves_on_with_each_of_them(clock: str) -> None:
    fields = {
        "method": "local-steps:H=2",
        "switching": "periodic:K=3",
        "attack_entry": "computation",
        "clock": clock,
    }
    attacked, moved = moves(**fields)
    who = masks(fields, 10)
    each = who if clock == "computation" else [mask for mask in who[:5] for _ in range(2)]
    assert attacked == moved == each


@pytest.mark.usefixtures("no_probe")
@pytest.mark.parametrize("entry", ["gradient", "message", "state"])
def test_in_static_rounds_the_attack_moves_on_once(entry: str) -> None:
    fields = {"method": "local-steps:H=2", "switching": "periodic:K=1", "attack_entry": entry}
    attacked, moved = moves(**fields)
    who = masks(fields, 5)
    assert attacked == ([mask for mask in who for _ in range(2)] if entry == "gradient" else who)
    assert moved == who


@pytest.mark.usefixtures("no_probe")
@pytest.mark.parametrize("entry", ["gradient", "message"])
def test_in_dynamic_rounds_it_moves_on_with_each_computation_that_it_attacks(entry: str) -> None:
    fields = {
        "method": "local-steps:H=2",
        "switching": "periodic:K=1",
        "attack_entry": entry,
        "clock": "computation",
    }
    attacked, moved = moves(**fields)
    who = masks(fields, 10)
    pairs = list(zip(who[::2], who[1::2], strict=True))
    # a round in which nothing changes is a static one
    assert 0 < sum(first == second for first, second in pairs) < 5
    each = [
        mask
        for first, second in pairs
        for mask in ([first, second] if first != second else [second])
    ]
    assert attacked == (who if entry == "gradient" else who[1::2])
    assert moved == (each if entry == "gradient" else who[1::2])


@pytest.mark.usefixtures("no_probe")
@pytest.mark.parametrize("entry", ["gradient", "computation"])
@pytest.mark.parametrize("clock", ["round", "computation"])
def test_a_difference_is_attacked_once(clock: str, entry: str) -> None:
    """One round of a full gradient, then others: by who is Byzantine at a round's last
    computation.
    """
    fields = {
        "method": "marina-pp:batches=4,p=1e-9,C=3",
        "switching": "periodic:K=1",
        "clock": clock,
        "attack_entry": entry,
    }
    attacked, moved = moves(**fields)
    who = masks(fields, 10)
    assert attacked == moved == (who[:4] if clock == "round" else [who[3], who[5], who[7], who[9]])


@pytest.mark.usefixtures("no_probe")
@pytest.mark.parametrize(
    ("clock", "entry", "learns"),
    [
        ("round", "gradient", [1, 1]),
        ("computation", "gradient", [1] * 10),
        ("round", "computation", [1] * 10),
        ("round", "message", [1, 1]),
    ],
)
def test_an_attack_learns_once_a_round_or_at_each_computation(
    clock: str, entry: str, learns: list[int]
) -> None:
    """Two rounds of five local steps; where identities change within the round, each step is one to
    learn from.
    """
    seen: list[int] = []

    def observe(own: Tensor, byzantine: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        assert own.shape == (M, 2)
        seen.append(1)
        return state | {"seen": state["seen"] + 1}

    attack = Attack(
        {"seen": torch.zeros(())},
        lambda own, _mask, _state: own,
        lambda _, state: state,
        observe=observe,
    )
    fields = {
        "method": "local-steps",
        "switching": "periodic:K=2",
        "clock": clock,
        "attack_entry": entry,
    }
    run = resolve(RunSpec(task="quadratic", workers=M, byzantine=2, budget=10, **fields))
    made = setup._prepare(run, torch.device("cpu"), "off")[0]
    state = State()
    with torch.no_grad():
        list(Simulation(dataclasses.replace(made._parts, attack=attack), state).events())
    assert seen == learns
    assert state.attack["seen"] == len(learns)


def test_labels_of_one_worker_are_changed_as_among_all() -> None:
    def relabel(labels: Tensor, computation: int, classes: int) -> Tensor:
        return labels + torch.arange(len(labels))[:, None] * classes + computation

    labels = torch.tensor([[1, 2, 3]])
    assert of_worker(relabel, 2, 4)(labels, 5, 10).tolist() == [[26, 27, 28]]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "method", ["marina-pp", "local-steps", "mu2-sgd", "byzantine-sgd", "safeguard"]
)
@pytest.mark.parametrize(
    "attack",
    ["label-flip", "optimal-ipm:evals=3", "mimic:target=learned", "mixed:parts=nan/label-flip"],
)
@pytest.mark.parametrize("clock", ["round", "computation"])
def test_every_kind_of_attack_on_every_kind_of_method(method: str, attack: str, clock: str) -> None:
    spec = RunSpec(
        task="digits",
        model="logistic",
        workers=M,
        byzantine=1,
        budget=24,
        method=method,
        attack=attack,
        clock=clock,
        switching="periodic:K=3",
        batch_size=64,
        eval_every=24,
    )
    assert isinstance(list(simulate(spec))[-1], Finished)
