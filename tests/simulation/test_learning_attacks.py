"""Calls of an attack that learns, in a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dynabro_cli.components.attacks._api import Attack
from dynabro_cli.components.registries import REGISTRIES
from tests.simulation.reference import level, masks, noise, quadratic

M, JMAX = 5, 3
State = dict[str, Tensor]


@pytest.mark.usefixtures("no_probe")
@pytest.mark.parametrize("entry", ["gradient", "computation", "message"])
@pytest.mark.parametrize("clock", ["round", "computation"])
@pytest.mark.parametrize("method", ["sgd", f"dynabro:jmax={JMAX}"])
def test_once_a_round_of_its_longest_level(
    method: str, clock: str, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a round within which identities change, an attack on gradients learns from every
    computation instead; an attack on computations does so in all rounds.

    All workers' gradients are at one point, so only their noise differs, which is known.
    """
    told: list[tuple[int, np.ndarray, np.ndarray]] = []
    attacked_at: list[int] = []

    def messages(own: Tensor, _: Tensor, state: State) -> Tensor:
        attacked_at.append(int(state["count"]))
        return own

    def observe(own: Tensor, byzantine: Tensor, state: State) -> State:
        told.append((int(state["count"]), (own - own[0]).numpy(), byzantine.numpy()))
        return {"count": state["count"] + 1}

    def advance(_: Tensor, state: State) -> State:
        assert int(state["count"]) == len(told)  # what was learned is there already
        return state

    learning = Attack({"count": torch.zeros(())}, messages, advance, observe=observe)
    monkeypatch.setitem(
        REGISTRIES["attacks"].entries()["sf"].__dict__, "factory", lambda *_: learning
    )
    outcome = quadratic(
        method=method,
        attack="sf",
        attack_entry=entry,
        switching="periodic:K=3",
        clock=clock,
        workers=M,
        byzantine=2,
        budget=60,
    )
    ticks, spent = masks("periodic:K=3", M, 2, 80), 0
    expected: list[tuple[np.ndarray, np.ndarray]] = []
    calls: list[int] = []
    for row in outcome.rounds:
        drawn = [noise(M, row.round, k) for k in range(row.cost)]
        who = [ticks[row.round if clock == "round" else spent + k] for k in range(row.cost)]
        if entry == "computation" or (row.dynamic and entry == "gradient"):
            calls += [len(expected) + k for k in range(row.cost)]
            expected += list(zip(drawn, who, strict=True))
        else:
            calls += [len(expected)] * (3 if row.cost > 1 else 1)  # levels 0, J - 1 and J
            expected.append((np.mean(drawn, 0), who[-1]))
        spent += row.cost
    assert [count for count, _, _ in told] == list(range(len(expected)))
    assert attacked_at == calls
    for (_, rows, mask), (drawn_rows, who_then) in zip(told, expected, strict=True):
        np.testing.assert_allclose(rows, drawn_rows - drawn_rows[0], atol=1e-12)
        np.testing.assert_array_equal(mask, who_then)
    assert any(row.dynamic for row in outcome.rounds) == (
        clock == "computation" and method != "sgd"
    )
    assert method == "sgd" or {level(row.round) <= JMAX for row in outcome.rounds} == {True, False}


@pytest.mark.parametrize("entry", ["gradient", "computation", "message", "state"])
def test_of_gradients_or_of_messages(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack learns from the vectors that it acts on: under momentum, gradients or momenta."""
    told: list[np.ndarray] = []

    def observe(own: Tensor, _: Tensor, state: State) -> State:
        told.append((own - own[0]).numpy())
        return state

    learning = Attack({}, lambda own, *_: own, lambda _, state: state, observe=observe)
    monkeypatch.setitem(
        REGISTRIES["attacks"].entries()["sf"].__dict__, "factory", lambda *_: learning
    )
    quadratic(
        method="momentum:beta=0.5",
        attack="sf",
        attack_entry=entry,
        workers=M,
        byzantine=2,
        budget=6,
    )
    memory = np.zeros((M, 2))
    for round_, rows in enumerate(told):
        drawn = noise(M, round_, 0)
        memory = 0.5 * memory + 0.5 * drawn
        expected = drawn if entry in ("gradient", "computation") else memory
        np.testing.assert_allclose(rows, expected - expected[0], atol=1e-12)
    assert len(told) == 6
