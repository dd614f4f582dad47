"""DynaBRO's plan, levels and filter, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.methods._api import (
    NOISE_COMPUTATIONS,
    MeansMethod,
    Measured,
    MethodSetting,
    Plan,
)
from dynabro_cli.components.methods.dynabro import expected_cost, planned, universal_coefficient
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import Evaluated, RoundsDone
from tests.components.methods.made import made
from tests.simulation.reference import quadratic
from tests.tables import each_row

table = settings(deadline=None, derandomize=True, max_examples=200)


def method(
    text: str,
    workers: int = 17,
    budget: int = 701,
    kappa: float | None = 3.0,
    noise: float | None = None,
) -> MeansMethod:
    built = made(text, MethodSetting(workers, budget), Measured(kappa, noise=noise))
    assert isinstance(built, MeansMethod)
    return built


def test_expected_cost() -> None:
    assert expected_cost(0) == 1.0
    assert expected_cost(1) == 1.5  # one half of the rounds cost 2, the others 1
    assert expected_cost(2) == 2.25
    assert expected_cost(7) == 7.0078125


@pytest.mark.parametrize("jmax", [3, 12])
def test_expected_cost_is_the_sum_over_levels(jmax: int) -> None:
    # J ~ Geom(1/2): a level j <= jmax has probability 2^-j and costs 2^j; all others together
    # 2^-jmax, and cost 1
    assert expected_cost(jmax) == sum(2.0**-j * 2**j for j in range(1, jmax + 1)) + 2.0**-jmax


def test_planned_with_a_level_given() -> None:
    assert planned(5000, 7) == (713, 7)  # 5000/7.0078125 = 713.49
    assert planned(8000, 7) == (1142, 7)
    assert planned(100, 0) == (100, 0)
    assert planned(3, 7) == (1, 7)


def test_planned_with_the_level_of_the_theory() -> None:
    # J = floor(log2 T) and T = budget/(J + 2^-J) hold for each other: 9 and 555, as 2^9 = 512 <=
    # 555 < 1024
    assert planned(5000, None) == (555, 9)
    assert planned(897, None) == (128, 7)
    assert planned(896, None) == (149, 6)
    assert planned(1, None) == (1, 0)
    assert planned(2, None) == (2, 0)  # a level of 1 would leave 2/1.5 rounds, fewer than 2^1
    assert planned(3, None) == (2, 1)


@table
@given(budget=st.integers(1, 10**7))
def test_the_level_of_the_theory_is_the_largest_that_its_rounds_allow(budget: int) -> None:
    """jmax is the largest J with 2^J <= T(J), T(J) = budget/(J + 2^-J): the jmax of equation 2,
    "2^J <= T".

    If floor(log2 T(J)) = J has a solution, jmax is this J. For budgets between two levels it has no
    solution: the larger level leaves too few rounds for itself, and the smaller one leaves enough
    for the larger.
    """
    rounds, level = planned(budget, None)
    assert 2**level <= budget / expected_cost(level)
    assert 2 ** (level + 1) > budget / expected_cost(level + 1)
    assert rounds == max(1, round(budget / expected_cost(level)))
    solutions = [
        j for j in range(40) if math.floor(math.log2(max(1.0, budget / expected_cost(j)))) == j
    ]
    assert solutions in ([], [level])


def test_universal_coefficient() -> None:
    # 16 x 17^2 x 100 = 462,400, log 13.0441856, eight times that 104.3534848
    assert universal_coefficient(17, 100) == pytest.approx(10.21535534, abs=1e-8)
    assert universal_coefficient(1, 1) == pytest.approx(math.sqrt(8 * math.log(16)))


def test_the_plan_is_nested_prefixes_up_to_jmax() -> None:
    drawn = method("dynabro:jmax=3")
    plans = {drawn.plan(np.random.Generator(np.random.Philox(seed))) for seed in range(300)}
    short = {plan for plan in plans if plan.level is not None and plan.level <= 3}
    assert short == {Plan(1, (1, 1, 2)), Plan(2, (1, 2, 4)), Plan(3, (1, 4, 8))}
    assert {plan.prefixes for plan in plans - short} == {(1,)}
    assert len(plans - short) > 1


def direct(
    built: MeansMethod, a0: float, lower: float, upper: float, level: int
) -> tuple[float, bool | None]:
    """g_t and the verdict, in one dimension, where the aggregates are the given numbers."""
    plan = Plan(level, (1, 2 ** (level - 1), 2**level))
    aggregates = [torch.tensor([value], dtype=torch.float64) for value in (a0, lower, upper)]
    result, accepted = built.direct(aggregates, plan)
    return float(result), None if accepted is None else bool(accepted)


def test_the_mlmc_gradient() -> None:
    # a_0 + 2^J (a_J - a_{J-1})
    assert direct(method("dynabro"), 1.0, 2.0, 2.5, level=3) == (1.0 + 8 * 0.5, None)
    assert direct(method("dynabro"), 1.0, 2.0, 1.0, level=1) == (-1.0, None)


def test_a_level_above_jmax_is_its_first_mini_batch() -> None:
    result, accepted = method("dynabro:filter=option1,noise_bound=1").direct(
        [torch.tensor([3.0])], Plan(8, (1,))
    )
    assert result.tolist() == [3.0]
    assert accepted is None


BUDGET, ROUNDS = 701, 100  # at jmax = 7
C = 10.21535534  # at m = 17 and T = 100, see above


@each_row("level", [1, 7])
@each_row(
    ("text", "kappa", "coefficient"),
    [
        ("dynabro:filter=option1,noise_bound=0.5", 2.0, math.sqrt(4 + 1 / 17)),
        ("dynabro:filter=option1,noise_bound=0.5", 0.0, math.sqrt(1 / 17)),
        ("dynabro:filter=option2,noise_bound=0.5", None, 6 * math.sqrt(2)),
    ],
    ids=["option1", "option1 without Byzantine workers", "option2"],
)
def test_the_filter_accepts_up_to_its_bound(
    text: str, kappa: float | None, coefficient: float, level: int
) -> None:
    """|a_J - a_{J-1}| <= (1 + sqrt 2) c_E C V/sqrt(2^J), else g_t = a_0."""
    built = method(text, budget=BUDGET, kappa=kappa)
    limit = (1 + math.sqrt(2)) * coefficient * C * 0.5 / math.sqrt(2**level)
    inside, outside = limit * (1 - 1e-6), limit * (1 + 1e-6)
    for sign in (1, -1):
        assert direct(built, 1.0, 0.0, sign * outside, level) == (1.0, False)
        value, accepted = direct(built, 1.0, 0.0, sign * inside, level)
        assert accepted is True
        assert value == pytest.approx(1 + sign * 2**level * inside, rel=1e-12)


def test_the_norm_is_taken_over_all_coordinates() -> None:
    built = method("dynabro:filter=option1,noise_bound=0.5", budget=BUDGET, kappa=2.0)
    limit = (1 + math.sqrt(2)) * math.sqrt(4 + 1 / 17) * C * 0.5 / math.sqrt(2)
    zero, plan = torch.zeros(4, dtype=torch.float64), Plan(1, (1, 1, 2))
    # four equal coordinates: a norm of twice each
    for size, expected in ((0.49, True), (0.51, False)):
        _, accepted = built.direct([zero, zero, zero + size * limit], plan)
        assert accepted is not None
        assert bool(accepted) is expected


def test_a_difference_that_is_not_a_number_is_rejected() -> None:
    built = method("dynabro:filter=option1,noise_bound=0.5")
    assert direct(built, 1.0, 0.0, math.nan, 2) == (1.0, False)
    assert direct(built, 1.0, 0.0, math.inf, 2) == (1.0, False)


def test_the_threshold_of_mfm() -> None:
    """T^0 = 2 C V; the aggregator divides it by sqrt(2^j)."""
    assert method(
        "dynabro:filter=option2,noise_bound=0.5", budget=BUDGET
    ).threshold == pytest.approx(2 * C * 0.5, rel=1e-9)
    assert method("dynabro:filter=option2", budget=BUDGET, noise=3.0).threshold == pytest.approx(
        2 * C * 3, rel=1e-9
    )
    assert method("dynabro:filter=option1,noise_bound=0.5").threshold is None
    assert method("dynabro").threshold is None


def test_which_noise_bound_counts() -> None:
    given = method("dynabro:filter=option1,noise_bound=0.5", noise=3.0)
    assert (given.wants_noise, given.noise_bound) == (False, 0.5)
    unknown = method("dynabro:filter=option1")
    assert (unknown.wants_noise, unknown.noise_bound) == (True, None)
    measured = method("dynabro:filter=option1", noise=3.0)
    assert measured.noise_bound == 3.0
    free = method("dynabro:noise_bound=0.5")
    assert (free.wants_noise, free.noise_bound) == (False, None)


def test_option1_needs_a_kappa() -> None:
    with pytest.raises(SpecError, match="filter=option1' needs an aggregator with a proved kappa"):
        method("dynabro:filter=option1", kappa=None)
    method("dynabro:filter=option2", kappa=None)
    method("dynabro", kappa=None)


@each_row(
    "text",
    ["dynabro:jmax=21", "dynabro:jmax=-1", "dynabro:noise_bound=0", "dynabro:filter=option3"],
)
def test_illegal_parameters(text: str) -> None:
    with pytest.raises(SpecError, match="is not legal"):
        method(text)


# --- the adaptive filter and clipping, which are not the paper's


def by(
    text: str, rho: float, a0: float, difference: float, level: int
) -> tuple[float, bool | None]:
    """g_t and the verdict with the round's spread given, in one dimension."""
    plan = Plan(level, (1, 2 ** (level - 1), 2**level))
    aggregates = [torch.tensor([value], dtype=torch.float64) for value in (a0, 0.0, difference)]
    result, accepted = method(text).direction(
        aggregates, plan, torch.tensor(rho, dtype=torch.float64)
    )
    return float(result), None if accepted is None else bool(accepted)


@each_row("level", [1, 7])
@each_row(
    ("text", "tau"), [("dynabro:filter=adaptive", 2.0), ("dynabro:filter=adaptive,tau=0.5", 0.5)]
)
def test_the_adaptive_filter_accepts_up_to_its_limit(text: str, tau: float, level: int) -> None:
    """|a_J - a_{J-1}| <= tau rho/2^(J/2), else g_t = a_0."""
    limit = tau * 3.0 / 2 ** (level / 2)
    for sign in (1, -1):
        assert by(text, 3.0, 1.0, sign * limit * 1.000001, level) == (1.0, False)
        value, accepted = by(text, 3.0, 1.0, sign * limit * 0.999999, level)
        assert accepted is True
        assert value == pytest.approx(1 + sign * 2**level * limit * 0.999999)


def test_a_spread_that_is_not_a_number_rejects() -> None:
    for rho in (math.inf, math.nan):
        assert by("dynabro:filter=adaptive", rho, 1.0, 0.0, 2) == (1.0, False)
    assert by("dynabro:filter=adaptive", 1.0, 1.0, math.nan, 2) == (1.0, False)


def test_a_clipped_correction_has_at_most_the_length_of_c_spreads() -> None:
    """2^3 x 0.5 = 4 is within 2 x 3, and 2^3 x 2 = 16 is shortened to it, whichever way it
    points.
    """
    assert by("dynabro:clip=2", 3.0, 1.0, 0.5, 3) == (5.0, None)
    assert by("dynabro:clip=2", 3.0, 1.0, 2.0, 3) == (7.0, None)
    assert by("dynabro:clip=2", 3.0, 1.0, -2.0, 3) == (-5.0, None)
    assert by("dynabro:filter=adaptive,tau=100,clip=2", 3.0, 1.0, 2.0, 3) == (7.0, True)
    assert by("dynabro:filter=adaptive,clip=2", 3.0, 1.0, 20.0, 3) == (1.0, False)


def test_the_spread_is_the_distance_of_a_nearest_majority() -> None:
    """Distances from 1 are 0, 1, 2, 9 and 99: the third, of floor(5/2) + 1. One that is not finite
    is the farthest.
    """
    measure = method("dynabro:filter=adaptive").spread
    assert measure is not None
    messages, centre = torch.tensor([[1.0], [2.0], [-1.0], [10.0], [100.0]]), torch.tensor([1.0])
    assert float(measure(messages, None, centre)) == 2.0
    assert float(measure(messages[:4], None, centre)) == 2.0  # floor(4/2) + 1 = 3, too
    finite = torch.tensor([False, True, True, True, True])
    assert float(measure(messages, finite, centre)) == 9.0
    assert math.isinf(float(measure(messages, torch.zeros(5, dtype=torch.bool), centre)))


def test_the_paper_s_methods_measure_no_spread() -> None:
    for text in (
        "dynabro",
        "dynabro:filter=option1,noise_bound=1",
        "dynabro:filter=option2,noise_bound=1",
    ):
        assert method(text).spread is None
    assert method("dynabro:filter=adaptive").noise_bound is None
    assert not method("dynabro:filter=adaptive").wants_noise


def test_new_parameters_leave_old_keys_as_they_were() -> None:
    component = REGISTRIES["methods"].parse("dynabro")
    assert component.mapping == {
        "name": "dynabro",
        "jmax": 7,
        "filter": "none",
        "noise_bound": None,
    }
    assert component.text == "dynabro"


def test_the_loop_measures_the_spread() -> None:
    """A tiny tau rejects every correction, and a huge one changes nothing; in dynamic rounds,
    too.
    """

    def gaps(text: str) -> tuple[list[float | None], set[bool | None]]:
        spec = RunSpec(
            task="quadratic",
            method=text,
            attack="shift:lambda=1",
            aggregator="cwmed",
            workers=5,
            byzantine=1,
            switching="periodic:K=3",
            clock="computation",
            budget=60,
            eval_every=10,
            learning_rate=0.01,
        )
        events = list(simulate(spec))
        rounds = [one for event in events if isinstance(event, RoundsDone) for one in event.rounds]
        found = [event.gap for event in events if isinstance(event, Evaluated)]
        return found, {one.accepted for one in rounds if one.level is not None and one.cost > 1}

    plain, _ = gaps("dynabro")
    assert gaps("dynabro:filter=adaptive,tau=1e9") == (plain, {True})
    assert gaps("dynabro:clip=1e9") == (plain, {None})
    rejected, verdicts = gaps("dynabro:filter=adaptive,tau=1e-9")
    assert verdicts == {False}
    assert rejected != plain
    assert gaps("dynabro:clip=1e-9")[0] == pytest.approx(rejected, rel=1e-6)


def test_measuring_the_noise_has_a_cost_that_the_help_says() -> None:
    for entry in REGISTRIES["methods"].entries().values():
        for info in entry.infos:
            if info.key == "noise_bound":
                assert f"{NOISE_COMPUTATIONS} gradient computations" in info.limits["help"]
    measured = quadratic(method="dynabro:filter=option1", workers=5, byzantine=1, budget=40)
    assert measured.rounds[0].budget - measured.rounds[0].cost == NOISE_COMPUTATIONS
