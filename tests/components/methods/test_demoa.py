"""Delayed momentum aggregation, against a loop in plain NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from dynabro_cli import RunSpec
from dynabro_cli.components.attacks._api import BEFORE_MEMORY
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.complete import answering
from dynabro_cli.experiment.resolve import resolve
from tests.simulation import reference
from tests.tables import each_row

M, F, ROUNDS = 9, 4, 40
FIELDS: dict[str, Any] = {
    "aggregator": "cwtm",
    "switching": "periodic:K=3",
    "workers": M,
    "byzantine": F,
    "budget": ROUNDS,
    "learning_rate": 0.05,
    "lr_drop": "none",
    "weight_decay": 0.0,
}


@each_row(
    ("attack", "entry"),
    [
        ("sf", "gradient"),
        ("sf", "computation"),
        ("sf", "message"),
        ("sf", "state"),
        ("ipm", "message"),
    ],
)
def test_whole_runs(attack: str, entry: str) -> None:
    """4 of 9 workers answer, so that a sample may be Byzantine as a whole; the rule has all 9
    messages and f = 4.
    """
    masks = reference.masks("periodic:K=3", M, F, ROUNDS)
    kept, received, errors = np.zeros((M, 2)), np.zeros((M, 2)), []

    def direction(round_: int, x: np.ndarray) -> np.ndarray:
        who = answering(0, 0.4, M, round_)
        byzantine = masks[round_][who]
        gradients = (x @ reference.A + reference.noise(M, round_, 0))[who]
        strike = reference.ATTACKS[attack] if not byzantine.all() else _all_byzantine(attack)
        if entry in BEFORE_MEMORY:
            gradients = strike(gradients, byzantine)
        kept[who] = 0.9 * kept[who] + 0.1 * gradients
        received[who] = kept[who] if entry in BEFORE_MEMORY else strike(kept[who], byzantine)
        if entry == "state":
            kept[who] = received[who]
        aggregate = reference.trimmed(received, F)
        errors.append(float(np.linalg.norm(aggregate - received[~masks[round_]].mean(0))))
        return aggregate

    gaps, norms = reference.descend(direction, ROUNDS, 0.05)
    outcome = reference.quadratic(
        method="demoa", attack=attack, attack_entry=entry, participation=0.4, **FIELDS
    )
    assert outcome.norms == pytest.approx(norms, rel=1e-9)
    assert [item.gap for item in outcome.evaluations] == pytest.approx(gaps, rel=1e-9)
    judged = [
        (item.aggregation_error, error) for item, error in zip(outcome.rounds, errors, strict=True)
    ]
    assert [told for told, _ in judged if told is not None] == pytest.approx(
        [e for told, e in judged if told is not None]
    )
    assert sum(told is not None for told, _ in judged) > ROUNDS / 2


def _all_byzantine(attack: str) -> Any:
    """IPM among Byzantine workers alone: their own vectors count as honest."""
    return (
        reference.sf
        if attack == "sf"
        else lambda own, byzantine: np.tile(-0.1 * own.mean(0), (len(own), 1))
    )


def test_if_all_answer_it_is_momentum() -> None:
    delayed, usual = (reference.quadratic(method=name, **FIELDS) for name in ("demoa", "momentum"))
    assert delayed.gaps == usual.gaps
    assert delayed.rounds == usual.rounds


def test_the_rule_is_made_for_all_workers_and_the_attack_for_those_that_answer() -> None:
    run = resolve(
        RunSpec(task="quadratic", method="demoa", attack="alie", participation=0.4, **FIELDS)
    )
    assert [(stage.workers, stage.byzantine) for stage in run.parts.stages] == [(M, F)]
    usual = resolve(
        RunSpec(task="quadratic", method="momentum", attack="alie", participation=0.4, **FIELDS)
    )
    assert [(stage.workers, stage.byzantine) for stage in usual.parts.stages] == [(4, 1)]


def test_rules_that_know_workers_by_number_may_be_behind_it() -> None:
    """Monna needs one worker's message in every round: the server has its last one."""
    spec = RunSpec(
        task="quadratic",
        participation=0.4,
        **FIELDS | {"aggregator": "monna", "byzantine": 2, "attack": "sf"},
    )
    resolve(dataclasses.replace(spec, method="demoa"))
    with pytest.raises(SpecError, match="needs every worker in every round"):
        resolve(dataclasses.replace(spec, method="momentum"))
    outcome = reference.run(**vars(dataclasses.replace(spec, method="demoa")))
    assert np.isfinite(outcome.norms).all()


@pytest.mark.thorough
def test_an_attack_that_sees_the_defence_sees_all_messages() -> None:
    """optimal-ipm asks for aggregates of what the answering workers would send: its search finds
    what harms the run more.
    """
    fields = FIELDS | {"method": "demoa", "participation": 0.6, "aggregator": "cwmed"}
    weak, strong = (
        reference.quadratic(attack=attack, **fields)
        for attack in ("ipm:epsilon=0.0001", "optimal-ipm")
    )
    mean = [
        np.mean([item.aggregation_error or 0.0 for item in outcome.rounds])
        for outcome in (weak, strong)
    ]
    assert mean[1] > mean[0]
