"""Byz-VR-MARINA-PP, by hand and in whole runs on the quadratic, recomputed in plain NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

from dynabro_cli import RunSpec
from dynabro_cli.components.methods._api import GatheringMethod, MethodSetting, Plan
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.resolve import resolve
from tests.simulation.reference import ATTACKS, START, A, gap, masks, noise, quadratic, trimmed

M, F, RATE = 5, 2, 0.05


def method(text: str, workers: int = 10, batches: int | None = None) -> GatheringMethod:
    built: GatheringMethod = (
        REGISTRIES["methods"].parse(text).build(MethodSetting(workers, 100, batches=batches))
    )
    return built


def plans(made: GatheringMethod, count: int = 4000) -> list[Plan]:
    return [made.plan(np.random.Generator(np.random.Philox(seed))) for seed in range(count)]


def test_plans() -> None:
    made = method("marina-pp:batches=7,p=0.3,C=4")
    drawn = plans(made)
    full = [plan for plan in drawn if plan.cohort is None]
    assert set(full) == {Plan(None, (7,))} == {made.first}
    assert len(full) / len(drawn) == pytest.approx(0.3, abs=0.03)
    cohorts = [plan.cohort for plan in drawn if plan.cohort is not None]
    assert {plan.prefixes for plan in drawn if plan.cohort is not None} == {(2,)}
    assert all(len(set(cohort)) == 4 and list(cohort) == sorted(cohort) for cohort in cohorts)
    counts = np.bincount(np.concatenate(cohorts), minlength=10) / len(cohorts)
    assert counts == pytest.approx([0.4] * 10, abs=0.05)


@pytest.mark.thorough
def test_defaults() -> None:
    # 20 mini-batches take all samples: p = 1/20; without samples 10 are fresh, and p = 1/10. A
    # fifth of 10 and of 11 workers
    assert method("marina-pp", batches=20).first == Plan(None, (20,))
    assert method("marina-pp").first == Plan(None, (10,))
    for batches, p in ((20, 0.05), (None, 0.1)):
        drawn = plans(method("marina-pp", batches=batches))
        assert sum(plan.cohort is None for plan in drawn) / len(drawn) == pytest.approx(
            p, abs=0.015
        )
    assert (method("marina-pp", 10).cohort, method("marina-pp", 11).cohort) == (2, 3)
    digits = resolve(RunSpec(method="marina-pp"))
    # 1,437 samples, 16 at a time
    assert digits.method.build(digits.method_setting).first == Plan(None, (90,))


def test_by_hand() -> None:
    """d = 2, alpha = 1: a full round at (0, 0), then a difference at (3, 4), which is clipped at
    5.
    """

    class Workers:
        x = torch.zeros(2)

        def gradients(self, computation: int, points: Tensor | None = None) -> Tensor:
            assert computation == 0
            return torch.tensor([[6.0, 8.0], [1.0, 1.0]]) if points is None else points.repeat(2, 1)

        def large(self, batches: int) -> Tensor:
            return torch.tensor([[1.0, 0.0], [3.0, 0.0]]) * batches

        def attacked(self, gradients: Tensor, computation: int) -> Tensor:
            raise AssertionError("its messages are attacked, and not its gradients")

    made, workers = method("marina-pp:C=2,batches=3", workers=2), Workers()
    assert made.receive is not None
    assert made.settle is not None
    full = made.gather(workers, Plan(None, (3,)), {})
    assert full.vectors.tolist() == [[3.0, 0.0], [9.0, 0.0]]
    # nothing is clipped
    assert made.receive(full.vectors, full.state).tolist() == full.vectors.tolist()
    direction, state = made.settle(torch.tensor([6.0, 0.0]), full.state)
    assert direction.tolist() == [6.0, 0.0]
    workers.x = torch.tensor([3.0, 4.0])
    some = made.gather(workers, Plan(None, (2,), (0, 1)), state)
    assert some.vectors.tolist() == [[6.0, 8.0], [1.0, 1.0]]  # those at (0, 0) are (0, 0)
    clipped = made.receive(some.vectors, some.state)  # |(6, 8)| = 10 is halved, |(1, 1)| is under 5
    assert clipped.tolist() == [[3.0, 4.0], [1.0, 1.0]]
    direction, state = made.settle(torch.tensor([2.0, 2.5]), some.state)
    assert direction.tolist() == [8.0, 2.5]
    assert {name: value.tolist() for name, value in state.items()} == {
        "x": [3.0, 4.0],
        "g": [8.0, 2.5],
    }


def test_what_is_not_finite_stays_so() -> None:
    """The rule that aggregates is to see it."""
    made = method("marina-pp", workers=3)
    assert made.receive is not None
    messages = torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [0.0, 0.0]])
    received = made.receive(messages, {"limit": torch.tensor(0.5)})
    assert received.isfinite().all(1).tolist() == [False, False, True]
    assert messages[1].tolist() == [math.inf, 1.0]


def test_more_workers_than_there_are() -> None:
    with pytest.raises(SpecError) as caught:
        resolve(RunSpec(task="quadratic", workers=4, byzantine=1, method="marina-pp:C=5"))
    assert caught.value.problems == [
        "method 'marina-pp': C=5 is more than the 4 workers. Try: C=4, or less"
    ]


def test_an_aggregator_that_is_not_defined_for_so_few_workers() -> None:
    with pytest.raises(
        SpecError, match=r"with C=2 workers a round: 'cwtm': f=3 is not legal with 2 workers"
    ):
        resolve(
            RunSpec(
                task="quadratic", workers=9, byzantine=4, aggregator="cwtm:f=3", method="marina-pp"
            )
        )


def drawn(round_: int, batches: int, p: float, chosen: int) -> Plan:
    """A round's plan, as the first line of Algorithm 1's loop draws it."""
    generator = Streams(0).generator("level", round_)
    if round_ == 0 or generator.random() < p:
        return Plan(None, (batches,))
    return Plan(None, (2,), tuple(sorted(generator.choice(M, chosen, replace=False).tolist())))


FIELDS: dict[str, Any] = {
    "workers": M,
    "byzantine": F,
    "learning_rate": RATE,
    "switching": "periodic:K=4",
    "budget": 150,
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("attack", "entry", "chosen", "f", "alpha"),
    [
        ("sf", "gradient", 3, 1, 0.2),
        ("sf", "message", 5, 2, 6.0),
        ("ipm", "gradient", 5, 2, 6.0),
        ("ipm", "message", 1, 0, 1.0),
        ("alie:z=1", "gradient", 1, 0, 1.0),
        ("alie:z=1", "message", 3, 1, 0.2),
    ],
)
def test_whole_runs(attack: str, entry: str, chosen: int, f: int, alpha: float) -> None:
    batches, p = 4, 0.3
    outcome = quadratic(
        method=f"marina-pp:batches={batches},p={p},C={chosen},alpha={alpha}",
        attack=attack,
        attack_entry=entry,
        aggregator="cwtm",
        **FIELDS,
    )
    who = masks("periodic:K=4", M, F, 150)
    x, spent, round_ = START, 0, 0
    gaps, norms, errors = [gap(x)], [], []
    before, g = x, np.zeros(2)
    while spent < 150:
        plan = drawn(round_, batches, p, chosen)
        if plan.cohort is None:
            gradients = np.mean([x @ A + noise(M, round_, k) for k in range(batches)], axis=0)
            messages, honest = ATTACKS[attack](gradients, who[round_]), ~who[round_]
            aggregate = trimmed(messages, F)
            g = aggregate
        else:
            # the noise of one mini-batch is the same at both points
            differences = (x - before) @ A + np.zeros((M, 2))
            messages = ATTACKS[attack](differences, who[round_])
            limit = alpha * np.linalg.norm(x - before)
            lengths = np.linalg.norm(messages, axis=1, keepdims=True)
            messages = (messages * np.minimum(1, limit / lengths))[list(plan.cohort)]
            honest = ~who[round_][list(plan.cohort)]
            aggregate = trimmed(messages, f)
            g = g + aggregate
        errors.append(
            np.linalg.norm(aggregate - messages[honest].mean(0)) if honest.any() else math.nan
        )
        before, x = x, x - RATE * g
        spent, round_ = spent + plan.prefixes[-1], round_ + 1
        gaps.append(gap(x))
        norms.append(float(np.linalg.norm(g)))
    assert_allclose(outcome.gaps, gaps, rtol=1e-7)
    assert_allclose(outcome.norms, norms, rtol=1e-7)
    assert [item.cost for item in outcome.rounds] == [
        drawn(t, batches, p, chosen).prefixes[-1] for t in range(round_)
    ]
    assert {item.cost for item in outcome.rounds} == {2, batches}
    told = [
        math.nan if item.aggregation_error is None else item.aggregation_error
        for item in outcome.rounds
    ]
    assert_allclose(told, errors, rtol=1e-5, atol=1e-9)
    # nobody honest among those who take part
    assert (chosen == 1) == any(math.isnan(error) for error in errors)


@pytest.mark.thorough
def test_clipping_bounds_what_a_byzantine_majority_does() -> None:
    """One worker a round, Byzantine in 4 of 9 of them, which sends a vector that is 20 long: a
    fifth of the rounds is full.
    """
    fields = FIELDS | {
        "workers": 9,
        "byzantine": 4,
        "attack": "shift:lambda=20",
        "aggregator": "cwmed",
        "budget": 600,
    }
    clipped, free = (
        quadratic(method=f"marina-pp:C=1,batches=5,alpha={alpha}", **fields).gaps
        for alpha in (3.0, 1e9)
    )
    assert (
        max(value or math.inf for value in clipped[100:])
        < max(value or 0 for value in free[100:]) / 10
    )
