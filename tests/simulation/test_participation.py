"""Partial participation: against the quadratic in plain NumPy, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dynabro_cli import RunSpec
from dynabro_cli.components.attacks._api import BEFORE_MEMORY
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import Evaluated, RoundsDone
from dynabro_cli.experiment.complete import answering, chain_setting
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.problem.images import ImageProblem
from dynabro_cli.simulation.setup import simulate
from tests.simulation import reference
from tests.tables import each_row

M, F, SHARE, ROUNDS = 9, 4, 0.6, 40
"""n = ceil(5.4) = 6 answer, and f = min(4, (6 - 1)//2) = 2."""


@each_row("entry", ["gradient", "computation", "message", "state"])
@each_row(("attack", "form"), [("sf", "ema"), ("ipm", "heavy-ball")])
def test_momentum(attack: str, form: str, entry: str) -> None:
    """Workers that do not answer compute nothing and keep their momentum; the attack sees the
    workers that answer.
    """
    masks = reference.masks("periodic:K=3", M, F, ROUNDS)
    gain = 0.1 if form == "ema" else 1.0
    kept = np.zeros((M, 2))

    def direction(round_: int, x: np.ndarray) -> np.ndarray:
        who = answering(0, SHARE, M, round_)
        assert len(who) == 6
        byzantine = masks[round_][who]
        gradients = (x @ reference.A + reference.noise(M, round_, 0))[who]
        if entry in BEFORE_MEMORY:
            gradients = reference.ATTACKS[attack](gradients, byzantine)
        kept[who] = 0.9 * kept[who] + gain * gradients
        sent = (
            kept[who] if entry in BEFORE_MEMORY else reference.ATTACKS[attack](kept[who], byzantine)
        )
        if entry == "state":
            kept[who] = sent
        return reference.trimmed(sent, 2)

    rate = 0.05 * gain if form == "heavy-ball" else 0.05
    gaps, norms = reference.descend(direction, ROUNDS, rate)
    outcome = reference.quadratic(
        method=f"momentum:beta=0.9,form={form}",
        attack=attack,
        attack_entry=entry,
        aggregator="cwtm",
        switching="periodic:K=3",
        workers=M,
        byzantine=F,
        budget=ROUNDS,
        learning_rate=rate,
        lr_drop="none",
        weight_decay=0.0,
        participation=SHARE,
    )
    assert outcome.norms == pytest.approx(norms, rel=1e-9)
    assert [item.gap for item in outcome.evaluations] == pytest.approx(gaps, rel=1e-9)
    # of all workers, as the schedule has it
    assert [item.byzantine for item in outcome.rounds] == [F] * ROUNDS


def test_dynabro() -> None:
    """The same workers in all computations of a round; a round costs those that answer what it
    costs without.
    """
    full = reference.quadratic(method="dynabro:jmax=3", workers=M, byzantine=F, budget=120)
    part = reference.quadratic(
        method="dynabro:jmax=3", workers=M, byzantine=F, budget=120, participation=SHARE
    )
    assert [(item.level, item.cost, item.budget) for item in part.rounds] == [
        (item.level, item.cost, item.budget) for item in full.rounds
    ]
    assert part.norms != full.norms
    who = answering(0, SHARE, M, 0)
    cost = part.rounds[0].cost
    gradients = np.stack(
        [reference.START @ reference.A + reference.noise(M, 0, k) for k in range(cost)]
    )[:, who]
    byzantine = reference.masks("periodic:K=10", M, F, 1)[0][who]

    def aggregated(count: int) -> np.ndarray:
        return reference.trimmed(reference.sf(gradients[:count].mean(0), byzantine), 2)

    expected = aggregated(1) + (
        cost * (aggregated(cost) - aggregated(cost // 2)) if cost > 1 else 0
    )
    assert part.norms[0] == pytest.approx(float(np.linalg.norm(expected)), rel=1e-9)


def test_the_chain_is_built_for_those_who_answer() -> None:
    spec = resolve(
        RunSpec(task="quadratic", method="sgd", workers=M, byzantine=F, participation=SHARE)
    ).spec
    assert (chain_setting(spec).workers, chain_setting(spec).byzantine) == (6, 2)
    few = resolve(
        RunSpec(task="quadratic", method="sgd", workers=M, byzantine=1, participation=SHARE)
    ).spec
    assert (chain_setting(few).workers, chain_setting(few).byzantine) == (6, 1)
    everybody = resolve(RunSpec(task="quadratic", method="sgd", workers=M, byzantine=F)).spec
    assert (chain_setting(everybody).workers, chain_setting(everybody).byzantine) == (M, F)
    with pytest.raises(SpecError, match="'krum': f=2 is not legal with 6 workers"):
        resolve(
            RunSpec(
                task="quadratic",
                method="sgd",
                aggregator="krum",
                workers=M,
                byzantine=F,
                participation=SHARE,
            )
        )


def test_nobody_else_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    draw = ImageProblem.draw

    def seen(self: ImageProblem, round_: int, computations: Any, workers: torch.Tensor) -> Any:
        if round_ < 100:
            asked.append(workers.tolist())
        return draw(self, round_, computations, workers)

    monkeypatch.setattr(ImageProblem, "draw", seen)
    spec = RunSpec(
        task="digits",
        model="logistic",
        method="sgd",
        attack="sf",
        workers=M,
        byzantine=F,
        budget=30,
        participation=SHARE,
    )
    list(simulate(spec))
    assert asked == [answering(0, SHARE, M, round_).tolist() for round_ in range(30)]
    asked.clear()
    spec = RunSpec(
        task="digits",
        model="logistic",
        method="sgd",
        attack="ipm",
        workers=M,
        byzantine=F,
        budget=30,
        participation=SHARE,
    )
    list(simulate(spec))
    masks = reference.masks("periodic:K=10", M, F, 30)
    honest = [
        [worker for worker in answering(0, SHARE, M, r) if not masks[r][worker]] for r in range(30)
    ]
    assert asked == honest


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["logistic", "cnn-digits"])
def test_a_sample_of_byzantine_workers_alone(model: str) -> None:
    """Two of nine answer, and now and then both are Byzantine: then they count as honest, as where
    all workers are.
    """
    usual = {
        "task": "digits",
        "method": "sgd",
        "attack": "ipm",
        "aggregator": "mean",
        "workers": M,
        "byzantine": F,
    }
    spec = RunSpec(
        **usual, model=model, budget=30, eval_every=1, learning_rate=0.01, participation=0.2
    )  # type: ignore[arg-type]
    stream = list(simulate(spec))
    rounds = [item for event in stream if isinstance(event, RoundsDone) for item in event.rounds]
    masks = reference.masks("periodic:K=10", M, F, 30)
    alone = [bool(masks[r][answering(0, 0.2, M, r)].all()) for r in range(30)]
    assert 0 < sum(alone) < 30
    assert [item.aggregation_error is None for item in rounds] == alone
    losses = [event.train_loss for event in stream if isinstance(event, Evaluated)][1:]
    assert all(loss is not None and np.isfinite(loss) for loss in losses)


def test_identities_and_batches_are_those_of_all_workers() -> None:
    """Without Byzantine workers, the mean of the workers that answer consists of the same gradients
    as with all workers.
    """
    first = reference.quadratic(
        method="sgd", aggregator="mean", workers=M, byzantine=0, budget=1, participation=SHARE
    )
    noise = reference.noise(M, 0, 0)[answering(0, SHARE, M, 0)].mean(0)
    assert first.norms[0] == pytest.approx(
        float(np.linalg.norm(reference.START @ reference.A + noise)), rel=1e-12
    )


def test_what_needs_every_worker() -> None:
    with pytest.raises(SpecError) as caught:
        resolve(
            RunSpec(
                task="quadratic",
                method="momentum",
                attack="momentum-tailored:lambda=1",
                switching="rotating",
                workers=9,
                participation=0.5,
            )
        )
    assert caught.value.problems == [
        (
            "attack 'momentum-tailored:lambda=1' needs every worker in every round, and "
            "participation=0.5. Try: --participation 1"
        )
    ]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (0.0, "participation=0 is not legal. Try: --participation with a number > 0 and <= 1"),
        (1.5, "participation=1.5 is not legal. Try: --participation with a number > 0 and <= 1"),
    ],
)
def test_shares_that_are_none(value: float, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(RunSpec(participation=value))
    assert caught.value.problems == [problem]


def test_all_of_them_is_the_run_without() -> None:
    assert resolve(RunSpec(participation=1)) == resolve(RunSpec())
