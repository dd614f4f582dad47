"""ByzantineSGD by hand, and in runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

from dynabro_cli.components.methods._api import JudgingMethod, Measured, Method, MethodSetting
from dynabro_cli.components.methods._filters import concentration, near_median, near_middle
from tests.components.methods.made import made
from tests.simulation.reference import START, A, gap, masks, noise, quadratic, sf


def method(text: str, workers: int = 3, budget: int = 100, noise: float | None = None) -> Method:
    return made(text, MethodSetting(workers, budget), Measured(noise=noise))


def judged(made: Method, rounds: list[tuple[list[float], float]]) -> list[list[int]]:
    """The good workers after each round of gradients and x, in one dimension."""
    state: dict[str, Tensor] = {}
    found = []
    assert isinstance(made, JudgingMethod)
    for gradients, x in rounds:
        messages = torch.tensor(gradients, dtype=torch.float64)[:, None]
        good, state = made.judge(messages, torch.tensor([x], dtype=torch.float64), state)
        found.append(good.nonzero()[:, 0].tolist())
    return found


HISTORY = [
    # x - x_1 = 0, so A = 0, 0, 0. B = 1, 1.5, 10: B_med = 1 with two workers within 2; 10 is over 2
    # x 2 away. g_med = 1, and 10 is over 4 V away: worker 2 goes
    ([1.0, 1.5, 10.0], 0.0),
    # x - x_1 = -1: A = -1, -1, -1. B = 2, 2.5, 11. Worker 2 does as the others, and stays out
    ([1.0, 1.0, 1.0], -1.0),
    # x - x_1 = -2: A = -1 - 5.2, -1 - 2, -1 - 0 = -6.2, -3, -1; their median is -3, and worker 0 is
    # 3.2 > 3 away
    ([2.6, 1.0, 0.0], -2.0),
    # worker 1 is alone, and its gradient 49 > 4 V from g_med = 1: nobody is left, and all begins
    # anew
    ([1.0, 50.0, 1.0], -3.0),
    # as in the first round: A = 0, B = 1, 1, 1
    ([1.0, 1.0, 1.0], -3.0),
    # x_1 is -3 now, so A = -1, -1, -5 at x = -4: 4 > 3
    ([1.0, 1.0, 5.0], -4.0),
]


def test_by_hand() -> None:
    made = method("byzantine-sgd:noise_bound=1,threshold_A=3,threshold_B=2")
    assert judged(made, HISTORY) == [[0, 1], [0, 1], [1], [], [0, 1, 2], [0, 1]]


def test_by_hand_without_a_restart() -> None:
    made = method("byzantine-sgd:noise_bound=1,threshold_A=3,threshold_B=2,empty=wait")
    assert judged(made, HISTORY) == [[0, 1], [0, 1], [1], [], [], []]


@pytest.mark.parametrize(("x", "good"), [(-1.0, [0, 1, 2]), (-1.01, [0, 1])])
def test_the_product_is_what_tells_here(x: float, good: list[int]) -> None:
    """A = x, x, 4 x: worker 2 is 3 |x| from the median, which is within threshold_A = 3 at x =
    -1.
    """
    made = method("byzantine-sgd:noise_bound=9,threshold_A=3,threshold_B=9")
    assert judged(made, [([0.0, 0.0, 0.0], 0.0), ([1.0, 1.0, 4.0], x)])[1] == good


@pytest.mark.parametrize(("last", "good"), [(5.0, [0, 1, 2]), (5.01, [0, 1])])
def test_up_to_four_v_from_the_median_gradient(last: float, good: list[int]) -> None:
    made = method("byzantine-sgd:noise_bound=1,threshold_A=9,threshold_B=9")
    assert judged(made, [([1.0, 1.5, last], 0.0)]) == [good]


@pytest.mark.parametrize(("last", "good"), [(5.0, [0, 1, 2]), (5.01, [0, 1])])
def test_up_to_twice_the_threshold_from_the_median_sum(last: float, good: list[int]) -> None:
    made = method("byzantine-sgd:noise_bound=9,threshold_A=9,threshold_B=2")
    assert judged(made, [([1.0, 1.5, last], 0.0)]) == [good]


@pytest.mark.thorough
def test_the_papers_thresholds() -> None:
    """T_B = 4 V sqrt(T log(16 m T/p)): here sqrt(100 log(16 x 3 x 100/0.1)) = sqrt(1077.8956) =
    32.831320.
    """
    # log 48,000 = 10.7789563
    base = 32.8313213
    assert math.sqrt(100 * concentration(3, 100, 0.1)) == pytest.approx(base, rel=1e-7)
    for factor, good in ((0.999, [0, 1, 2]), (1.001, [0, 1])):
        far = factor * 2 * 4 * 0.5 * base  # twice the threshold, V = 1/2
        pieces = 200  # so that no gradient is 4 V from the others
        rounds = [([0.0, 0.0, far / pieces], 0.0)] * pieces
        assert judged(method("byzantine-sgd:noise_bound=0.5"), rounds)[-1] == good
    # T_A = 4 D V sqrt(T log(16 m T/p)), D = 3, or the largest |x - x_1| so far, which is 2 here
    for text, distance in (
        ("byzantine-sgd:D=3,noise_bound=0.5", 3),
        ("byzantine-sgd:noise_bound=0.5", 2),
    ):
        for factor, good in ((0.999, [0, 1, 2]), (1.001, [0, 1])):
            product = factor * 4 * distance * 0.5 * base
            rounds = [([0.0, 0.0, 0.0], 0.0), ([0.0, 0.0, 0.0], 2.0)]
            # B stays small
            rounds += [
                ([0.0, 0.0, (-1) ** k * product / (100 * 1.9)], 1.9 * (-1) ** k) for k in range(100)
            ]
            assert judged(method(text), rounds)[-1] == good


def test_medians() -> None:
    vectors = torch.tensor([[0.0], [4.0], [5.0], [6.0], [8.0]])
    everyone = torch.ones(5, dtype=torch.bool)
    # within 1: of 0 only itself, of 4 two, of 5 three, more than 5/2: the median is 5, and 3 to 7
    # are near it
    assert near_median(vectors, 1.0, everyone).tolist() == [False, True, True, True, False]
    assert near_median(vectors, 0.9, everyone).tolist() == [False] * 5
    # 5 has two voters within 1, and so has nobody more
    fewer = torch.tensor([True, False, True, True, True])
    assert near_median(vectors, 1.0, fewer).tolist() == [False] * 5
    # 5 has three voters within 1, but is not a voter; of the voters 5.8 has most, itself and 5.9
    between = torch.tensor([[5.0], [4.2], [5.8], [5.9], [99.0]])
    assert (
        near_median(between, 1.0, torch.tensor([False, True, True, True, True])).tolist()
        == [False] * 5
    )
    numbers = torch.tensor([1.0, math.nan, 3.0, 10.0, -2.0])
    voters = torch.tensor([True, False, True, True, True])
    # the median of -2, 1, 3, 10 is 2
    assert near_middle(numbers, torch.tensor(1.0), voters).tolist() == [
        True,
        False,
        True,
        False,
        False,
    ]
    assert near_middle(numbers.nan_to_num(nan=-9.0), torch.tensor(1.0), voters).tolist() == [
        True,
        False,
        True,
        False,
        False,
    ]
    assert near_middle(numbers, torch.tensor(math.inf), voters).tolist() == [
        True,
        False,
        True,
        True,
        True,
    ]


def test_half_of_the_workers_are_no_majority() -> None:
    vectors = torch.tensor([[0.0], [0.0], [5.0], [5.0]])
    assert near_median(vectors, 1.0, torch.ones(4, dtype=torch.bool)).tolist() == [False] * 4


def test_v_is_wanted_where_it_is_not_given() -> None:
    assert method("byzantine-sgd").wants_noise
    assert not method("byzantine-sgd:noise_bound=2").wants_noise
    assert (
        method("byzantine-sgd", noise=3.0).noise_bound,
        method("byzantine-sgd:noise_bound=2").noise_bound,
    ) == (3.0, 2.0)


FIELDS = {
    "workers": 9,
    "byzantine": 4,
    "budget": 400,
    "attack": "shift:lambda=4",
    "learning_rate": 0.02,
}


@pytest.mark.thorough
def test_better_than_the_mean_where_identities_stay() -> None:
    gaps = {
        text: quadratic(method=text, aggregator="mean", switching="static", **FIELDS).gaps[-1]
        for text in ("sgd", "byzantine-sgd")
    }
    assert gaps["sgd"] is not None
    assert gaps["byzantine-sgd"] is not None
    assert gaps["byzantine-sgd"] < gaps["sgd"] / 100


@pytest.mark.thorough
def test_under_switching_only_a_restart_goes_on() -> None:
    """Every worker is Byzantine before long: where those that were never come back, nothing moves
    from then on.
    """
    ends = {}
    for empty in ("restart", "wait"):
        outcome = quadratic(
            method=f"byzantine-sgd:empty={empty}", switching="periodic:K=5", **FIELDS
        )
        ends[empty] = outcome.norms
    assert set(ends["wait"][100:]) == {0.0}
    assert sum(norm == 0 for norm in ends["restart"]) > 5
    assert sum(norm > 0 for norm in ends["restart"][100:]) > 100


def reference(
    rounds: int, identities: list[np.ndarray], v: float, t_b: float, t_a: float
) -> tuple[list[float], list[float]]:
    """Algorithm 1 in plain NumPy, worker by worker, on the quadratic under sign flips; restarted
    where nobody is left.
    """
    m = len(identities[0])
    x, first = START, START
    good, a, b = set(range(m)), np.zeros(m), np.zeros((m, 2))
    gaps, norms = [gap(x)], []
    for t in range(rounds):
        gradients = sf(x @ A + noise(m, t, 0), identities[t])
        for i in range(m):
            a[i] += gradients[i] @ (x - first)
            b[i] += gradients[i]

        def central(vectors: np.ndarray, threshold: float) -> np.ndarray | None:
            near = [
                sum(np.linalg.norm(other - one) <= threshold for other in vectors) > m / 2
                for one in vectors
            ]
            return vectors[near.index(True)] if True in near else None

        b_med, g_med = central(b, t_b), central(gradients, 2 * v)
        good = {
            i
            for i in good
            if b_med is not None
            and g_med is not None
            and abs(a[i] - np.median(a)) <= t_a
            and np.linalg.norm(b[i] - b_med) <= 2 * t_b
            and np.linalg.norm(gradients[i] - g_med) <= 4 * v
        }
        direction = gradients[sorted(good)].mean(0) if good else np.zeros(2)
        if not good:
            good, a, b, first = set(range(m)), np.zeros(m), np.zeros((m, 2)), x
        x = x - 0.05 * direction
        gaps.append(gap(x))
        norms.append(float(np.linalg.norm(direction)))
    return gaps, norms


@pytest.mark.thorough
@pytest.mark.parametrize(("v", "t_b", "t_a"), [(0.7, 4.0, 9.0), (2.0, 6.0, 1.0), (1.0, 3.0, 3.0)])
@pytest.mark.parametrize("switching", ["static", "periodic:K=4"])
@pytest.mark.parametrize("workers", [5, 6])
def test_whole_runs(v: float, t_b: float, t_a: float, switching: str, workers: int) -> None:
    outcome = quadratic(
        method=f"byzantine-sgd:noise_bound={v},threshold_A={t_a},threshold_B={t_b}",
        attack="sf",
        switching=switching,
        workers=workers,
        byzantine=2,
        learning_rate=0.05,
        budget=60,
    )
    expected = reference(60, masks(switching, workers, 2, 60), v, t_b, t_a)
    assert_allclose(outcome.gaps, expected[0], rtol=1e-9)
    assert_allclose(outcome.norms, expected[1], rtol=1e-9)
