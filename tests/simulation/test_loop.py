"""The round loop: what is spent, when it ends, what it reports, and who is Byzantine."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from dynabro_cli import RunSpec, simulate
from dynabro_cli.core import events
from dynabro_cli.simulation.round.records import PATH_DIMENSIONS, point
from tests.simulation.reference import Outcome, masks, quadratic, run
from tests.tables import each_row

METHODS = ["sgd", "momentum", "dynabro", "dynabro:jmax=2", "dynabro:jmax=0", "dynabro:jmax=auto"]


def check_accounting(outcome: Outcome, budget: int, every: int, samples: int) -> None:
    """Costs add up to the budget, the run ends at the first round that reaches it, and evaluations
    come where they are due.
    """
    rounds, totals = outcome.rounds, outcome.last.totals
    assert [item.round for item in rounds] == list(range(len(rounds)))
    spent = 0
    due = [(0, 0)]
    for item in rounds:
        assert spent < budget
        crossed = (spent + item.cost) // every > spent // every
        spent += item.cost
        assert item.budget == spent
        if crossed or spent >= budget:
            due.append((item.round + 1, spent))
    assert spent >= budget
    assert [(item.round, item.budget) for item in outcome.evaluations] == due
    assert [item.samples for item in outcome.evaluations] == [count * samples for _, count in due]
    assert (totals.rounds, totals.budget_spent) == (len(rounds), spent)


@each_row(
    ("method", "budget", "every"),
    [
        *((method, 100, 7) for method in METHODS),
        *(("dynabro", 100, every) for every in (1, 1000)),
        *((method, 1, 7) for method in ("momentum", "dynabro", "dynabro:jmax=auto")),
    ],
)
def test_accounting(method: str, budget: int, every: int) -> None:
    outcome = quadratic(
        method=method, budget=budget, eval_every=every, batch_size=3, workers=5, byzantine=2
    )
    check_accounting(outcome, budget, every, samples=15)
    jmax = {
        "dynabro": 7,
        "dynabro:jmax=2": 2,
        "dynabro:jmax=0": 0,
        "dynabro:jmax=auto": 0 if budget == 1 else 4,
    }.get(method)
    for item in outcome.rounds:
        if jmax is None:
            assert (item.level, item.cost) == (None, 1)
        else:
            assert item.level is not None
            assert item.level >= 1
            assert item.cost == (2**item.level if item.level <= jmax else 1)


@pytest.mark.thorough
def test_levels_of_every_kind_occur_and_the_last_round_may_overshoot() -> None:
    outcome = quadratic(method="dynabro:jmax=3", budget=1000, eval_every=50)
    assert {item.cost for item in outcome.rounds} == {1, 2, 4, 8}
    assert {item.cost for item in outcome.rounds if (item.level or 0) > 3} == {1}
    overshoots = {
        quadratic(method="dynabro:jmax=6", budget=64, seed=seed).last.totals.budget_spent
        for seed in range(8)
    }
    assert min(overshoots) >= 64
    assert len(overshoots) > 1


def test_order_of_events() -> None:
    kinds = [
        type(event)
        for event in simulate(
            RunSpec(task="quadratic", method="sgd", budget=40, eval_every=30), device="cpu"
        )
    ]
    # rounds are reported after every 16th, and before every evaluation, so that a reader never sees
    # a score ahead of its rounds
    done, scored = events.RoundsDone, events.Evaluated
    assert kinds == [
        events.Started,
        scored,
        done,
        done,
        scored,
        done,
        done,
        scored,
        events.Finished,
    ]


@pytest.mark.parametrize(
    ("model", "method"),
    [("logistic", "dynabro"), ("mlp:dropout=0.2", "momentum"), ("mlp:dropout=0.2", "dynabro")],
)
def test_a_repetition_is_bit_identical(model: str, method: str) -> None:
    spec = RunSpec(
        task="digits",
        model=model,
        method=method,
        budget=60,
        eval_every=20,
        switching="periodic:K=3",
        seed=4,
    )
    torch.manual_seed(1)
    first = list(simulate(spec, device="cpu"))
    torch.manual_seed(2)  # torch's own generator plays no part
    state = torch.get_rng_state()
    assert list(simulate(spec, device="cpu")) == first
    assert torch.equal(torch.get_rng_state(), state)
    last = first[-1]
    assert isinstance(last, events.Finished)
    assert last.loss is not None
    other = list(simulate(RunSpec(**vars(spec) | {"seed": 5}), device="cpu"))[-1]
    assert isinstance(other, events.Finished)
    assert other.loss != last.loss


def test_runs_in_turn_do_not_disturb_each_other() -> None:
    spec = RunSpec(task="digits", model="mlp:dropout=0.2", budget=20, eval_every=10)
    alone = list(simulate(spec, device="cpu"))
    streams = simulate(spec, device="cpu"), simulate(spec, device="cpu")
    assert torch.is_grad_enabled()
    turns = [pair for pair in zip(*streams, strict=True) if torch.is_grad_enabled()]
    assert turns == list(zip(alone, alone, strict=True))


def test_finished_repeats_the_last_evaluation() -> None:
    outcome = run(task="digits", model="logistic", method="sgd", budget=10, eval_every=3)
    last = outcome.evaluations[-1]
    assert (outcome.last.accuracy, outcome.last.loss, outcome.last.gap) == (
        last.test_accuracy,
        last.test_loss,
        None,
    )
    assert outcome.evaluations[0].train_loss is None
    assert all(item.train_loss is not None for item in outcome.evaluations[1:])


BERNOULLI = "bernoulli:p=0.1,D=4,delta_max=0.48"


@pytest.mark.thorough
def test_methods_of_one_seed_face_the_same_identities_round_by_round() -> None:
    common = {"workers": 17, "byzantine": 8, "switching": BERNOULLI, "seed": 6}
    runs = [
        quadratic(method=name, budget=100, **common).rounds
        for name in ("sgd", "momentum", "dynabro:jmax=2")
    ]
    seen = [[(item.byzantine, item.switched) for item in rounds] for rounds in runs]
    shortest = min(map(len, seen))
    assert shortest > 20
    assert seen[0] == seen[1]
    assert seen[0][:shortest] == seen[2][:shortest]
    identities = masks(BERNOULLI, 17, 8, 100, seed=6)
    assert [item.byzantine for item in runs[0]] == [int(mask.sum()) for mask in identities]
    assert len({item.byzantine for item in runs[0]}) > 2
    other = quadratic(method="sgd", budget=100, **common | {"seed": 7}).rounds
    assert [item.byzantine for item in other] != [item.byzantine for item in runs[0]]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "switching",
    ["periodic:K=1", "periodic:K=3", "periodic:K=50", "static", BERNOULLI, "rotating:period=2"],
)
@pytest.mark.parametrize("method", ["dynabro:jmax=4", "momentum"])
@pytest.mark.parametrize("clock", ["round", "computation"])
def test_switches_and_dynamic_rounds_are_those_of_the_schedule(
    clock: str, method: str, switching: str
) -> None:
    """Tick by tick: a round's ticks are its number, or the computations that it spends."""
    outcome = quadratic(
        method=method,
        switching=switching,
        clock=clock,
        workers=6,
        byzantine=2,
        budget=60,
        eval_every=20,
        aggregator="cwmed",
    )
    schedule = masks(switching, 6, 2, 200)
    previous, switches = None, 0
    for item in outcome.rounds:
        ticks = (
            range(item.round, item.round + 1)
            if clock == "round"
            else range(item.budget - item.cost, item.budget)
        )
        now = [tuple(schedule[tick]) for tick in ticks]
        within = sum(left != right for left, right in pairwise(now))
        entering = previous is not None and previous != now[0]
        assert item.byzantine == max(sum(mask) for mask in now)
        assert item.switched == (entering or within > 0)
        assert item.dynamic == (within > 0)
        switches += entering + within
        previous = now[-1]
    assert outcome.last.totals.switches == switches
    dynamic = sum(item.dynamic for item in outcome.rounds)
    assert outcome.last.totals.dynamic_rounds == dynamic
    if method == "momentum" or clock == "round" or switching == "static":
        assert dynamic == 0
    elif switching == "periodic:K=1":
        # a new uniform set at each tick is the old one with probability 1/15: most rounds of two
        # computations are dynamic
        assert dynamic > 0.5 * sum(item.cost > 1 for item in outcome.rounds)


@each_row(
    ("clock", "attack", "method"),
    [
        ("round", "sf", "sgd"),
        ("round", "alie", "dynabro"),
        ("computation", "sf", "dynabro"),
        ("computation", "ipm", "dynabro"),
        ("computation", "alie", "dynabro"),
    ],
)
def test_rounds_in_which_every_worker_is_byzantine(clock: str, attack: str, method: str) -> None:
    switching = "bernoulli:p=0.5,D=5,delta_max=1"
    outcome = quadratic(
        method=method,
        attack=attack,
        switching=switching,
        clock=clock,
        budget=50,
        learning_rate=1e-3,
    )
    schedule = masks(switching, 3, 1, 200)
    for item in outcome.rounds:
        ticks = (
            range(item.round, item.round + 1)
            if clock == "round"
            else range(item.budget - item.cost, item.budget)
        )
        honest = ~sum((schedule[tick] for tick in ticks), start=schedule[ticks[0]])
        assert (item.aggregation_error is None) == (not honest.any())
    assert any(item.aggregation_error is None for item in outcome.rounds)
    assert isinstance(outcome.last, events.Finished)


def test_every_worker_byzantine_in_every_round() -> None:
    outcome = quadratic(switching="bernoulli:p=1,D=5,delta_max=1", byzantine=1, budget=50)
    assert {(item.byzantine, item.aggregation_error) for item in outcome.rounds} == {(3, None)}
    assert outcome.last.totals.switches == 0
    images = run(
        task="digits",
        model="logistic",
        method="sgd",
        switching="bernoulli:p=1,D=5,delta_max=1",
        budget=5,
    )
    assert {item.aggregation_error for item in images.rounds} == {None}
    assert math.isfinite(images.evaluations[-1].train_loss or math.nan)


def test_aggregation_error_is_the_distance_from_the_honest_mean() -> None:
    # mean of all minus mean of the honest under sf: with all gradients equal to g, 2/5 of them
    # flipped, |g/5 - g| = 4/5 |g|
    common = {
        "task": "quadratic:sigma=0",
        "aggregator": "mean",
        "workers": 5,
        "byzantine": 2,
        "budget": 40,
    }
    for method in ("sgd", "dynabro"):
        for item in quadratic(method=method, **common).rounds:
            # |g_t| = |g|/5; without noise MLMC corrections vanish
            expected = 4 * item.gradient_norm
            assert item.aggregation_error == pytest.approx(expected, rel=1e-9)


def check_divergence(outcome: Outcome) -> None:
    """A diverged run ends at the first round that is not finite, with the model as it stands."""
    assert isinstance(outcome.last, events.Diverged)
    *before, last = outcome.rounds
    assert all(math.isfinite(item.gradient_norm) for item in before)
    assert outcome.last.round == last.round
    assert outcome.last.totals.rounds == last.round + 1
    assert outcome.last.totals.budget_spent == last.budget == outcome.evaluations[-1].budget
    scored = [item.round for item in outcome.evaluations]
    assert scored == sorted(set(scored)), "two evaluations of one round"
    assert scored[-1] == last.round + 1


@each_row(
    ("method", "every"),
    [("sgd", 10), ("momentum", 10), ("dynabro", 10), ("dynabro", 1), ("sgd", 5000)],
)
def test_divergence_is_a_result(method: str, every: int) -> None:
    outcome = quadratic(
        method=method, attack="none", learning_rate=1e6, budget=5000, eval_every=every
    )
    check_divergence(outcome)
    assert not math.isfinite(outcome.rounds[-1].gradient_norm)
    assert len(outcome.rounds) < 100


def test_divergence_of_a_network() -> None:
    outcome = run(
        task="digits", model="mlp", method="sgd", learning_rate=1e30, budget=100, eval_every=50
    )
    check_divergence(outcome)
    assert outcome.last.accuracy is not None
    assert not math.isfinite(outcome.last.loss or 0.0)


@pytest.mark.parametrize("budget", [1, 2])
def test_divergence_in_the_last_update(budget: int) -> None:
    """The gradients were finite to the end, but the last update overflows: x_2 of budget 1, and the
    gradient after it of 2.
    """
    check_divergence(quadratic(method="sgd", attack="none", learning_rate=1e308, budget=budget))


@pytest.mark.parametrize(("d", "start"), [(1, "2.5"), (3, "1:0.1:-7")])
def test_a_small_model_is_recorded_itself(d: int, start: str) -> None:
    outcome = quadratic(
        task=f"quadratic:dimension={d},start={start}", method="sgd", budget=20, eval_every=5
    )
    points = [item.x for item in outcome.evaluations]
    assert points[0] == tuple(map(float, start.split(":")))
    assert [None if point is None else len(point) for point in points] == [d] * 5
    assert len(set(points)) == 5


def test_a_path_is_that_of_its_gaps() -> None:
    for item in quadratic(method="momentum", budget=50, eval_every=10).evaluations:
        first, second = item.x or ()
        assert item.gap == pytest.approx(first**2 + first * second + second**2, rel=1e-7)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["sgd", "momentum", "dynabro:jmax=3"])
def test_squared_gradients_are_summed_over_rounds(method: str) -> None:
    """A = [[2, 1], [1, 2]]; the x_t before each round are the models of all evaluations except the
    last.
    """
    outcome = quadratic(method=method, budget=70, eval_every=1)
    before = [item.x or () for item in outcome.evaluations[:-1]]
    assert len(before) == len(outcome.rounds) > 5
    expected = sum((2 * x + y) ** 2 + (x + 2 * y) ** 2 for x, y in before)
    assert outcome.last.totals.squared_gradients == pytest.approx(expected, rel=1e-6)


def test_of_a_network_no_gradients_are_summed() -> None:
    assert run(task="digits", model="logistic", budget=2).last.totals.squared_gradients is None


def test_a_larger_model_is_not_recorded() -> None:
    assert PATH_DIMENSIONS == 3
    assert {item.x for item in quadratic(task="quadratic:dimension=4", budget=10).evaluations} == {
        None
    }
    assert {item.x for item in run(task="digits", model="logistic", budget=2).evaluations} == {None}


@each_row("value", [0.1, 1 / 3, -1e-30, 16777217.0, 3.4e38])
def test_nine_digits_tell_numbers_of_single_precision_apart(value: float) -> None:
    x = torch.tensor([value], dtype=torch.float32)
    (kept,) = point(x) or ()
    assert torch.equal(torch.tensor([kept], dtype=torch.float32), x)
    assert len(repr(kept)) <= 16
