"""mu^2-SGD, by hand and in whole runs on the quadratic, recomputed in plain NumPy with the points w
and x themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dynabro_cli import RunSpec
from dynabro_cli.components.attacks._api import BEFORE_MEMORY
from dynabro_cli.components.methods._api import GatheringMethod, MethodSetting, Plan
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.resolve import resolve
from tests.simulation import reference

M, F, RATE, ROUNDS = 7, 3, 0.1, 40


def method(text: str) -> GatheringMethod:
    built: GatheringMethod = REGISTRIES["methods"].parse(text).build(MethodSetting(2, 100))
    return built


def test_by_hand() -> None:
    """One dimension, the gradient at x is x for the first worker and 2 x for the second; beta_t =
    1/t, gamma_t = 2/(t + 1).

    At x_1 = 6: d = (6, 12), a = 9, gamma = 1: g = 9, and w_2 = x_2. With a rate of 1/3, x_2 = 3:
    the gradients are (3, 6) and before (6, 12), beta_2 = 1/2: d = (3, 6) + ((6, 12) - (6, 12))/2 =
    (3, 6), a = 4.5, gamma = 2/3: g = 3, and w_3 = 1.5 where x_3 = 2, so that the lag is (2 - 1.5) 3
    = 1.5. At x_3 = 2, beta_3 = 1/3: d = (2, 4) + 2/3 ((3, 6) - (3, 6)), a = 3, gamma = 1/2: g = (3
    + 1.5)/2.
    """
    factors = torch.tensor([[1.0], [2.0]])

    class Workers:
        x = torch.tensor([6.0])

        def gradients(self, computation: int, points: Tensor | None = None) -> Tensor:
            assert computation == 0, "both gradients are of one mini-batch"
            return factors * (self.x if points is None else points)

        def large(self, batches: int) -> Tensor:
            raise AssertionError

        def attacked(self, gradients: Tensor, computation: int) -> Tensor:
            return gradients

    made, workers, state = method("mu2-sgd"), Workers(), {}
    assert made.settle is not None
    assert (made.first, made.plan_of(1, np.random.default_rng(0))) == (
        Plan(None, (1,)),
        Plan(None, (2,)),
    )
    for x, vectors, expected in ((6.0, [6, 12], 9.0), (3.0, [3, 6], 3.0), (2.0, [2, 4], 2.25)):
        workers.x = torch.tensor([x])
        gathered = made.gather(workers, Plan(None, (2,)), state)
        torch.testing.assert_close(
            gathered.vectors.flatten(), torch.tensor(vectors, dtype=torch.float32)
        )
        direction, state = made.settle(gathered.vectors.mean(0), gathered.state)
        torch.testing.assert_close(direction, torch.tensor([expected]))
    # w_4 = 1.5 - 1, x_4 = 2 - 0.75: 3 (1.25 - 0.5)
    torch.testing.assert_close(state["lag"], torch.tensor([2.25]))


@pytest.mark.thorough
@pytest.mark.parametrize("attack", reference.ATTACKS)
@pytest.mark.parametrize("entry", ["gradient", "computation", "message", "state"])
@pytest.mark.parametrize("text", ["mu2-sgd", "mu2-sgd:beta=0.25,gamma=0.1"])
def test_whole_runs(text: str, entry: str, attack: str) -> None:
    outcome = _run(method=text, attack=attack, attack_entry=entry)
    _compare(outcome, text, entry, reference.ATTACKS[attack])


def test_a_memory_of_negated_gradients() -> None:
    """sf:negates=gradient at the state: the message and the memory are minus the gradient at x_t,
    without correction.
    """
    outcome = _run(method="mu2-sgd", attack="sf:negates=gradient", attack_entry="state")
    _compare(outcome, "mu2-sgd", "state", reference.sf, of_gradients=True)


def _run(**fields: Any) -> reference.Outcome:
    fixed = {
        "workers": M,
        "byzantine": F,
        "aggregator": "cwtm",
        "switching": "periodic:K=4",
        "budget": 2 * ROUNDS - 1,
    }
    return reference.quadratic(
        learning_rate=RATE, lr_drop="none", weight_decay=0.0, **fixed, **fields
    )


def _compare(
    outcome: reference.Outcome, text: str, entry: str, strike: Any, *, of_gradients: bool = False
) -> None:
    who = reference.masks("periodic:K=4", M, F, ROUNDS)
    x = w = before = reference.START
    kept, gaps = np.zeros((M, 2)), [reference.gap(x)]
    for t in range(1, ROUNDS + 1):
        beta, gamma = (
            (max(1 / t, 0.01), max(2 / (t + 1), 0.01)) if text == "mu2-sgd" else (0.25, 0.1)
        )
        noise, mask = reference.noise(M, t - 1, 0), who[t - 1]
        fresh, stale = x @ reference.A + noise, before @ reference.A + noise
        own = fresh
        if entry in BEFORE_MEMORY:
            fresh, stale = strike(fresh, mask), strike(stale, mask)
        kept = fresh if t == 1 else fresh + (1 - beta) * (kept - stale)
        sent = kept
        if entry not in BEFORE_MEMORY:
            sent = strike(own, mask) if of_gradients else strike(kept, mask)
            sent = np.where(mask[:, None], sent, kept)
        if entry == "state":
            kept = sent
        before, w = x, w - RATE * reference.trimmed(sent, F)
        x = (1 - gamma) * x + gamma * w
        gaps.append(reference.gap(x))
    assert [item.cost for item in outcome.rounds] == [1] + [2] * (ROUNDS - 1)
    np.testing.assert_allclose(outcome.gaps, gaps, rtol=1e-7)


def test_all_workers_must_answer() -> None:
    with pytest.raises(SpecError, match="needs every worker in every round"):
        resolve(RunSpec(task="quadratic", method="mu2-sgd", participation=0.5))
