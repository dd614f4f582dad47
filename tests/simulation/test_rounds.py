"""Whole runs on the quadratic, recomputed round by round in plain NumPy from the same random
streams.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.simulation.reference import (
    ATTACKS,
    A,
    DynaBRO,
    Outcome,
    descend,
    masks,
    mfm,
    momentum,
    noise,
    quadratic,
    sf,
    trimmed,
)
from tests.tables import each_row

M, F = 5, 2
RATE = 0.05


def same(outcome: Outcome, expected: tuple[list[float], list[float]]) -> None:
    """The gaps before and after every round, and every |g_t|, agree up to rounding."""
    assert_allclose(outcome.gaps, expected[0], rtol=1e-9)
    assert_allclose(outcome.norms, expected[1], rtol=1e-9)


def rule(name: str) -> Callable[[np.ndarray], np.ndarray]:
    return {
        "mean": lambda rows: rows.mean(0),
        "cwmed": lambda rows: np.median(rows, axis=0),
        "cwtm": lambda rows: trimmed(rows, F),
    }[name]


def test_plain_distributed_sgd() -> None:
    """Without attack and defence, x_{t+1} = x_t - eta mean_i g_{t,i}, each g the mean of its
    mini-batch's gradients.
    """
    outcome = quadratic(
        method="sgd",
        attack="none",
        aggregator="mean",
        workers=M,
        byzantine=F,
        batch_size=4,
        learning_rate=RATE,
        budget=40,
        seed=3,
    )
    same(
        outcome,
        descend(lambda t, x: A @ x + noise(M, t, 0, batch_size=4, seed=3).mean(0), 40, RATE),
    )
    assert {item.byzantine for item in outcome.rounds} == {F}


ENTRIES = ["gradient", "computation", "message", "state"]


@each_row(
    ("entry", "attack", "aggregator"),
    [
        *((entry, attack, "cwmed") for entry in ENTRIES for attack in ATTACKS),
        ("state", "sf", "mean"),
    ],
)
def test_momentum_and_where_the_attack_enters(entry: str, attack: str, aggregator: str) -> None:
    outcome = quadratic(
        method="momentum:beta=0.8",
        attack=attack,
        attack_entry=entry,
        aggregator=aggregator,
        switching="periodic:K=4",
        workers=M,
        byzantine=F,
        learning_rate=RATE,
        budget=30,
    )
    identities = masks("periodic:K=4", M, F, 30)
    steps = momentum(
        M, identities, ATTACKS[attack], rule(aggregator), beta=0.8, gain=0.2, entry=entry
    )
    same(outcome, descend(steps, 30, RATE))
    assert len({tuple(mask) for mask in identities}) > 3


@each_row("entry", ENTRIES)
def test_how_long_a_worker_stays_poisoned(entry: str) -> None:
    """By hand: three workers take turns of ten rounds at adding v = (1, 1), beta = 0.9, no noise,
    mean aggregation.

    All messages are then a common vector plus a worker's bias b v. Entering at the gradient, b
    grows as 1 - 0.9^n in n Byzantine rounds and decays by 0.9 in every honest one; on the message
    alone, b is 1 while Byzantine and 0 at once after; kept in the state, b grows as (1 - 0.9^n)/(1
    - 0.9) and decays by 0.9. The aggregation error is |v| times the difference between the mean b
    of all workers and of the honest ones.
    """
    outcome = quadratic(
        task="quadratic:sigma=0",
        method="momentum:beta=0.9",
        attack="shift:lambda=1",
        attack_entry=entry,
        switching="rotating:period=10",
        aggregator="mean",
        budget=20,
    )
    growth = 10.0 if entry == "state" else 1.0
    expected = []
    for round_ in range(20):
        turn, n = divmod(round_, 10)
        current = 1.0 if entry == "message" else growth * (1 - 0.9 ** (n + 1))
        carried = (
            0.0 if turn == 0 or entry == "message" else growth * (1 - 0.9**10) * 0.9 ** (n + 1)
        )
        expected.append(abs((current + carried) / 3 - carried / 2) * math.sqrt(2))
    assert_allclose([item.aggregation_error for item in outcome.rounds], expected, rtol=1e-9)


@each_row("beta", [0.9, 0.99])
@each_row("switching", ["rotating", "periodic:K=2"])
@each_row(
    "attack",
    [
        "momentum-tailored:lambda=1",
        "mixed:parts=momentum-tailored:lambda=1/momentum-tailored:lambda=1",
    ],
)
def test_the_tailored_bias_is_v_from_the_first_round(
    beta: float, switching: str, attack: str
) -> None:
    """Also with m_1 = g_1. Then b = v in each Byzantine round and decays in others, as with m_0 =
    0, and the aggregation error of the mean is the same. In round 1 it is |v|/3 with one Byzantine
    worker of three.
    """
    errors = [
        [
            item.aggregation_error
            for item in quadratic(
                task="quadratic:sigma=0",
                method=f"momentum:beta={beta},start={start}",
                attack=attack,
                switching=switching,
                aggregator="mean",
                learning_rate=1e-3,
                budget=30,
            ).rounds
        ]
        for start in ("zero", "gradient")
    ]
    assert_allclose(errors[1], errors[0], rtol=1e-9)
    assert errors[1][0] == pytest.approx(math.sqrt(2) / 3)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["sgd", "dynabro:jmax=3"])
def test_where_the_attack_enters_is_all_the_same_without_memory(method: str) -> None:
    gradient, message, state = (
        quadratic(
            method=method, attack="alie", attack_entry=entry, workers=M, byzantine=F, budget=60
        )
        for entry in ("gradient", "message", "state")
    )
    assert gradient.gaps == message.gaps == state.gaps
    assert gradient.rounds == message.rounds == state.rounds


@pytest.mark.parametrize("attack", ["none", "sf"])
def test_heavy_ball_is_ema_at_a_larger_learning_rate(attack: str) -> None:
    """m_ema = (1 - beta) m_heavy_ball, so the paths agree where the learning rates differ by 1/(1 -
    beta).
    """
    common = {
        "attack": attack,
        "switching": "periodic:K=5",
        "workers": M,
        "byzantine": F,
        "budget": 100,
    }
    ema = quadratic(method="momentum:beta=0.9", learning_rate=0.05, **common)
    heavy = quadratic(
        method="momentum:beta=0.9,form=heavy-ball", learning_rate=0.05 * (1 - 0.9), **common
    )
    assert_allclose(ema.gaps, heavy.gaps, rtol=1e-9)
    assert_allclose(np.array(ema.norms) / np.array(heavy.norms), 1 - 0.9, rtol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("attack", ["none", "sf", "alie"])
def test_beta_zero_and_jmax_zero_are_sgd(attack: str) -> None:
    common = {"attack": attack, "workers": M, "byzantine": F, "budget": 50, "learning_rate": RATE}
    sgd = quadratic(method="sgd", **common)
    assert quadratic(method="momentum:beta=0", **common).gaps == sgd.gaps
    assert quadratic(method="dynabro:jmax=0", **common).gaps == sgd.gaps


CELLS = [*itertools.product(ATTACKS, ["cwtm"], ["round", "computation"], ENTRIES[:2])]
CELLS += [("sf", "mean", "computation", "gradient"), ("ipm", "cwmed", "computation", "gradient")]
CELLS += [("alie:z=1", "cwmed", "computation", "computation")]


@pytest.mark.parametrize(("attack", "aggregator", "clock", "entry"), CELLS)
def test_dynabro(attack: str, aggregator: str, clock: str, entry: str) -> None:
    """Levels, nested prefixes, the attack on each level's message, and on every mini-batch in a
    dynamic round; with the entry ``computation``, on every mini-batch in all rounds.
    """
    outcome = quadratic(
        method="dynabro:jmax=4",
        attack=attack,
        attack_entry=entry,
        aggregator=aggregator,
        switching="periodic:K=3",
        clock=clock,
        workers=M,
        byzantine=F,
        learning_rate=RATE,
        budget=150,
    )
    ticks = masks("periodic:K=3", M, F, 200)
    combine = rule(aggregator)
    steps = DynaBRO(
        M,
        ticks,
        clock == "round",
        4,
        ATTACKS[attack],
        lambda rows, _: combine(rows),
        each=entry == "computation",
    )
    same(outcome, descend(steps, len(outcome.rounds), RATE))
    assert [item.cost for item in outcome.rounds] == steps.costs
    errors = [item.aggregation_error for item in outcome.rounds]
    assert [error is None for error in errors] == [error is None for error in steps.errors]
    assert_allclose(
        [error or 0 for error in errors],
        [error or 0 for error in steps.errors],
        rtol=1e-7,
        atol=1e-12,
    )
    assert {item.level for item in outcome.rounds} > {1, 2, 3}
    assert {item.accepted for item in outcome.rounds} == {None}
    assert any(item.dynamic for item in outcome.rounds) == (clock == "computation")


def test_the_first_level_is_the_first_mini_batch() -> None:
    """Every round of dynabro starts from the mini-batch that sgd would compute at that x_t: here in
    the first round.
    """
    sgd = quadratic(method="sgd", workers=M, byzantine=F, budget=1)
    rejecting = quadratic(
        method="dynabro:filter=option1,noise_bound=1e-9", workers=M, byzantine=F, budget=1
    )
    assert rejecting.norms[0] == sgd.norms[0]


def limit_option1(kappa: float, rounds: int, bound: float) -> Callable[[int], float]:
    coefficient = math.sqrt(2 * kappa + 1 / M)
    c = math.sqrt(8 * math.log(16 * M**2 * rounds))
    return lambda j: (1 + math.sqrt(2)) * coefficient * c * bound / math.sqrt(2**j)


KAPPA = 6 * 2 / (5 - 4) * (1 + 2 / (5 - 4))  # of cwtm at m = 5, f = 2
BUDGET = 300
ROUNDS = round(BUDGET / (4 + 2**-4))  # 74, at jmax = 4


@each_row(
    ("bound", "verdicts", "clock"),
    [
        (1e-6, {False}, "computation"),
        (0.002, {True, False}, "round"),
        (0.002, {True, False}, "computation"),
        (10.0, {True}, "computation"),
    ],
)
def test_filter_option1(bound: float, verdicts: set[bool], clock: str) -> None:
    """The correction counts where |a_J - a_{J-1}| is within its bound; else g_t is the level-0
    aggregate.
    """
    outcome = quadratic(
        method=f"dynabro:jmax=4,filter=option1,noise_bound={bound}",
        aggregator="cwtm",
        switching="periodic:K=3",
        clock=clock,
        workers=M,
        byzantine=F,
        learning_rate=RATE,
        budget=BUDGET,
    )
    limit = limit_option1(KAPPA, ROUNDS, bound)
    steps = DynaBRO(
        M,
        masks("periodic:K=3", M, F, 400),
        clock == "round",
        4,
        sf,
        lambda rows, _: trimmed(rows, F),
        limit,
    )
    same(outcome, descend(steps, len(outcome.rounds), RATE))
    accepted = [item.accepted for item in outcome.rounds]
    assert accepted == steps.accepted
    assert {verdict for verdict in accepted if verdict is not None} == verdicts
    assert [verdict is None for verdict in accepted] == [item.cost == 1 for item in outcome.rounds]
    assert outcome.started.record["noise_bound"] == bound


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("bound", "clock"),
    [(0.003, "computation"), (0.03, "round"), (0.03, "computation"), (0.3, "computation")],
)
def test_filter_option2(bound: float, clock: str) -> None:
    """MFM at T^j = 2 C V/sqrt(2^j), and the bound (1 + sqrt 2) 6 sqrt 2 C V/sqrt(2^J)."""
    outcome = quadratic(
        method=f"dynabro:jmax=4,filter=option2,noise_bound={bound}",
        switching="periodic:K=3",
        clock=clock,
        workers=M,
        byzantine=F,
        learning_rate=RATE,
        budget=BUDGET,
    )
    scale = math.sqrt(8 * math.log(16 * M**2 * ROUNDS)) * bound
    steps = DynaBRO(
        M,
        masks("periodic:K=3", M, F, 400),
        clock == "round",
        4,
        sf,
        lambda rows, count: mfm(rows, 2 * scale / math.sqrt(count)),
        lambda j: (1 + math.sqrt(2)) * 6 * math.sqrt(2) * scale / math.sqrt(2**j),
    )
    same(outcome, descend(steps, len(outcome.rounds), RATE))
    assert [item.accepted for item in outcome.rounds] == steps.accepted
    assert outcome.started.record["aggregator"] == "mfm"


@pytest.mark.thorough
def test_a_filter_that_accepts_all_changes_nothing() -> None:
    common = {"aggregator": "cwtm", "workers": M, "byzantine": F, "budget": BUDGET}
    free = quadratic(method="dynabro", **common)
    loose = quadratic(method="dynabro:filter=option1,noise_bound=1e6", **common)
    assert loose.gaps == free.gaps
    assert all(item.accepted for item in loose.rounds if item.cost > 1)
