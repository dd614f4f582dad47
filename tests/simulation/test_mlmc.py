"""Lemma 3.1 (lem:mlmc) by Monte Carlo: bias, variance and cost of the gradients that
``methods/dynabro.py`` makes.

Every check allows for chance by a bound that a true lemma breaks with a stated probability; the
seed is fixed.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.attacks._api import AttackSetting
from dynabro_cli.components.methods._api import MethodSetting, Plan
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks._api import TaskSetting

M, F, D = 5, 2, 2
BUDGET = 897  # J 2^J + 1 at J = 7: T = 128 rounds, and jmax = floor(log2 T) = 7
T, JMAX = 128, 7
SAMPLES = 100_000
VARIANCE = 0.5**2 * D  # sigma^2 of the lemma, E|noise|^2, on the quadratic
KAPPA = 4 * (1 + F / (M - 2 * F)) ** 2  # of cwmed
LEMMA_C2 = 2 * VARIANCE * (KAPPA + 1 / M)  # c^2 of Lemma 3.3
ATTACKS = ("none", "shift:lambda=1", "sf")


class Sample(NamedTuple):
    """Draws of g - grad f(x): [n, d] of MLMC, what each has cost, and [n, d] of the plain aggregate
    at every level.
    """

    mlmc: np.ndarray
    costs: np.ndarray
    levels: list[np.ndarray]


def prefix_means(
    generator: np.random.Generator, prefixes: tuple[int, ...], count: int
) -> list[torch.Tensor]:
    """Means of the quadratic's gradients over nested prefixes of mini-batches, ``count`` times: [m,
    count * d] each.

    The means over disjoint blocks are drawn as such: a mean of n normal vectors is normal with a
    variance of 1/n.
    """
    objective = REGISTRIES["tasks"].parse("quadratic").build(TaskSetting("unused")).load()  # type: ignore[arg-type]
    gradient = objective.gradient(objective.start)
    total, done, means = torch.zeros(M, count, D, dtype=torch.float64), 0, []
    for prefix in prefixes:
        if prefix > done:
            block = objective.noise(generator, M * count).view(M, count, D)
            total = total + block * math.sqrt(prefix - done)
            done = prefix
        means.append((total / prefix + gradient).flatten(1))
    return means


@functools.cache
def sample(attack_text: str) -> Sample:
    """Draw levels by the method's own plan, and let its own ``direct`` combine them, all rounds of
    a level at once.
    """
    method = REGISTRIES["methods"].parse("dynabro:jmax=auto").build(MethodSetting(M, BUDGET))
    rule = REGISTRIES["aggregators"].parse("cwmed").build(AggregatorSetting(M, F))
    attack = REGISTRIES["attacks"].parse(attack_text).build(AttackSetting(M))
    byzantine = torch.arange(M) < F
    generator = np.random.Generator(np.random.PCG64(0))

    def aggregate(message: torch.Tensor, prefix: int) -> torch.Tensor:
        return rule.aggregate(attack.messages(message, byzantine, {}), {}, prefix)[0]

    objective = REGISTRIES["tasks"].parse("quadratic").build(TaskSetting("unused")).load()  # type: ignore[arg-type]
    truth = objective.gradient(objective.start).numpy()
    plans: dict[Plan, int] = {}
    for _ in range(SAMPLES):
        plan = method.plan(generator)
        plans[plan] = plans.get(plan, 0) + 1
    mlmc, costs = [], []
    for plan, count in plans.items():
        means = prefix_means(generator, plan.prefixes, count)
        aggregates = [
            aggregate(mean, prefix) for mean, prefix in zip(means, plan.prefixes, strict=True)
        ]
        direction, _ = method.direct(aggregates, plan)
        mlmc.append(direction.view(count, D).numpy() - truth)
        costs += [plan.prefixes[-1]] * count
    levels = []
    for j in range(JMAX + 1):
        (messages,) = prefix_means(generator, (2**j,), SAMPLES)
        levels.append(aggregate(messages, 2**j).view(SAMPLES, D).numpy() - truth)
    return Sample(np.concatenate(mlmc), np.array(costs), levels)


def standard_error(draws: np.ndarray) -> float:
    """sqrt(E|mean - E mean|^2) of the mean of independent draws [n, d]."""
    return math.sqrt(draws.var(0).sum() / len(draws))


def c_squared(drawn: Sample) -> float:
    """c^2 of equation (3), sup_j 2^j E|g^j - grad f|^2 up to jmax, as estimated: far below the
    lemma's.
    """
    return max(2**j * float(np.square(level).sum(1).mean()) for j, level in enumerate(drawn.levels))


SURE = 6.0
"""Allowed number of standard errors. A mean of many draws is normal to high accuracy, and a normal
vector is further than six root-mean-square lengths from its centre with probability at most 2e-9
(reached where all its variance is in one coordinate).
"""


@pytest.mark.thorough
@pytest.mark.parametrize("attack", ATTACKS)
def test_aggregates_meet_equation_3_with_the_c_of_lemma_3_3(attack: str) -> None:
    """E|g^j - grad|^2 <= c^2/2^j at every level: error probability below 1e-6 over all of them."""
    drawn = sample(attack)
    for j, level in enumerate(drawn.levels):
        squares = np.square(level).sum(1)
        assert squares.mean() - SURE * squares.std() / math.sqrt(SAMPLES) <= LEMMA_C2 / 2**j
    assert c_squared(drawn) <= LEMMA_C2


@pytest.mark.thorough
@pytest.mark.parametrize("attack", ATTACKS)
def test_expectation_is_that_of_the_largest_level(attack: str) -> None:
    """E g^MLMC = E g^Jmax, by the telescoping sum; two sample means are compared, error probability
    below 1e-7.
    """
    drawn = sample(attack)
    largest = drawn.levels[JMAX]
    allowed = SURE * math.hypot(standard_error(drawn.mlmc), standard_error(largest))
    difference = np.linalg.norm(drawn.mlmc.mean(0) - largest.mean(0))
    assert difference <= allowed
    if attack != "none":  # the first level's own bias lies far outside, or this would prove nothing
        assert np.linalg.norm(drawn.levels[0].mean(0)) > 3 * (
            np.linalg.norm(largest.mean(0)) + allowed
        )


@pytest.mark.parametrize("attack", ATTACKS)
def test_bias(attack: str) -> None:
    """|E g^MLMC - grad f| <= sqrt(2 c^2/T), with the estimated c^2 as with the lemma's; error
    probability below 1e-7.
    """
    drawn = sample(attack)
    bias, chance = np.linalg.norm(drawn.mlmc.mean(0)), SURE * standard_error(drawn.mlmc)
    for c2 in (c_squared(drawn), LEMMA_C2):
        assert bias - chance <= math.sqrt(2 * c2 / T)
    assert chance < math.sqrt(2 * c_squared(drawn) / T), "too few draws to tell"


@pytest.mark.parametrize("attack", ATTACKS)
def test_variance(attack: str) -> None:
    """E|g^MLMC - E g^MLMC|^2 <= 14 c^2 log2 T, with six standard errors of the mean square to
    spare.
    """
    drawn = sample(attack)
    squares = np.square(drawn.mlmc - drawn.mlmc.mean(0)).sum(1)
    chance = SURE * squares.std() / math.sqrt(SAMPLES)
    for c2 in (c_squared(drawn), LEMMA_C2):
        assert squares.mean() + chance <= 14 * c2 * math.log2(T)
    # what the low bias is paid with
    assert squares.mean() > np.square(drawn.levels[0] - drawn.levels[0].mean(0)).sum(1).mean()


def test_cost() -> None:
    """Nested levels cost jmax + 2^-jmax mini-batches on average, under the lemma's 1 + 3/2 log2 T;
    error probability 2e-9.
    """
    costs = sample("none").costs
    expected = sum(2**-j * 2**j for j in range(1, JMAX + 1)) + 2**-JMAX
    assert expected == JMAX + 2**-JMAX
    assert abs(costs.mean() - expected) <= SURE * costs.std() / math.sqrt(SAMPLES)
    assert expected <= 1 + 1.5 * math.log2(T)
    assert set(costs) == {2**j for j in range(JMAX + 1)}


def test_levels_are_geometric() -> None:
    """P(J = j) = 2^-j: Hoeffding gives |share - 2^-j| <= 0.0106 but with probability 4e-10 for each
    of the levels.
    """
    method = REGISTRIES["methods"].parse("dynabro").build(MethodSetting(M, BUDGET))
    generator = np.random.Generator(np.random.PCG64(1))
    levels = [method.plan(generator).level for _ in range(SAMPLES)]
    for j in range(11):
        assert abs(levels.count(j) / SAMPLES - (2**-j if j else 0)) <= 0.0106
