"""The time for which one gradient influences a method's updates."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from dynabro_cli import RunSpec
from dynabro_cli.answers.theory.history import (
    DISTURBANCE,
    TOLERANCE,
    Window,
    history_window,
    window_of,
)
from dynabro_cli.components.aggregators._api import Aggregator, AggregatorSetting
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.grid.plan import plan
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep
from dynabro_cli.experiment.resolve import Run, resolve
from tests.tables import each_row

FIELDS: dict[str, Any] = {"task": "quadratic", "workers": 7, "byzantine": 3, "budget": 400}


def run(method: str, **also: Any) -> Run:
    return resolve(RunSpec(**FIELDS | also, method=method))


@each_row(
    "method", ["sgd", "dynabro:jmax=3", "dynabro:filter=option2,noise_bound=1", "local-steps"]
)
def test_without_memory_one_round(method: str) -> None:
    assert history_window(run(method)) == Window(1, True, False)


@pytest.mark.parametrize(("beta", "rounds"), [(0.5, 10), (0.9, 66), (0.0, 1)])
def test_momentum_and_the_mean(beta: float, rounds: int) -> None:
    """A gradient's share falls as beta^k: 0.5^9 = 0.00195 and 0.9^65 = 0.00106 are over a
    thousandth, the next are not.
    """
    for form in ("ema", "heavy-ball"):
        window = history_window(run(f"momentum:beta={beta},form={form}", aggregator="mean"))
        assert window == Window(rounds, True, False)
    assert beta ** (rounds - 1) > TOLERANCE > beta**rounds


def test_momentum_and_a_rule_that_bounds_what_one_worker_does() -> None:
    """The momentum is an outlier until the disturbance is as small as the noise: about
    log(10,000)/log(1/beta) rounds more.
    """
    window = history_window(run("momentum:beta=0.8", aggregator="cwmed"))
    most = (math.log(1 / TOLERANCE) + math.log(DISTURBANCE)) / math.log(1 / 0.8)
    assert 0.8 * most < window.rounds < 1.3 * most
    assert window.ended


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("safeguard:noise_bound=1,T0=9,T1=31", Window(31, True, True)),
        ("safeguard:noise_bound=1,guards=single,T0=9", Window(9, True, True)),
        ("safeguard:noise_bound=1,T0=9,T1=31,reset=never", Window(100, False, True)),
        ("byzantine-sgd:noise_bound=1", Window(100, False, True)),
    ],
)
def test_filters(method: str, expected: Window) -> None:
    assert history_window(run(method), 100) == expected


def test_the_largest_first_round_of_marina_is_remembered_to_the_next() -> None:
    """The seed draws the place of the second full round."""
    for seed, chosen, aggregator in (
        (0, 7, "mean"),
        (1, 7, "mean"),
        (2, 3, "cwtm"),
        (3, 3, "cwtm"),
    ):
        made = run(f"marina-pp:batches=5,p=0.2,C={chosen}", aggregator=aggregator, seed=seed)
        method, _ = made.assemble()
        plans = [method.plan(Streams(seed).generator("level", t)) for t in range(1, 200)]
        following = 1 + next(t for t, drawn in enumerate(plans) if drawn.cohort is None)
        assert history_window(made) == Window(following, True, False)


@pytest.mark.thorough
def test_what_the_noise_is_measured_in_does_not_matter() -> None:
    for noise in (0.01, 1.0, 300.0):
        assert history_window(run("safeguard:T0=5,T1=11"), 100, noise) == Window(11, True, True)
        assert history_window(run("byzantine-sgd"), 40, noise) == Window(40, False, True)


@pytest.mark.thorough
def test_columns_of_a_stored_run() -> None:
    """Also as a table of numbers has them: with NaN for nothing, and NumPy's numbers."""
    for row in plan(
        load_sweep("history-dependence", ["seeds=3", "budget=60", "eval_every=10"])
    ).rows:
        given = row | {
            "rounds": np.int64(60),
            "noise_bound": np.nan,
            "seed": np.int64(3),
            "learning_rate": np.float64(0.01),
        }
        window = window_of(given)
        assert window == history_window(
            resolve(RunSpec(task="digits", budget=60, method=row["method"], seed=3)), 60
        )
        assert window_of(given, 1).rounds == 1


def test_of_workers_that_answer_in_part() -> None:
    """Seven of eleven workers answer, and the rule is made for seven: it gets seven messages."""

    class Counting:
        """Stand-in for a rule: the mean of exactly ``workers`` messages."""

        def build(self, setting: AggregatorSetting) -> Aggregator:
            def aggregate(
                messages: Tensor, state: dict[str, Tensor], _: int | Tensor
            ) -> tuple[Tensor, dict[str, Tensor]]:
                assert len(messages) == setting.workers == 7
                return messages.mean(0), state

            return Aggregator(aggregate, None)

    made = dataclasses.replace(run("sgd", workers=11, participation=0.6), aggregator=Counting())  # type: ignore[arg-type]
    assert history_window(made) == (1, True, False)
