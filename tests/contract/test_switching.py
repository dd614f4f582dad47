"""Promises of every switching strategy: one table over the registry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dynabro_cli import RunSpec
from dynabro_cli.answers.analysis.pairs import FOLLOWING
from dynabro_cli.components.api import make_switching
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.switching._api import Mask, Switching
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.schedule import identities
from tests.parameters import TRACE
from tests.tables import each_row

# Required parameters of strategies; nine workers, three of them Byzantine, suit all.
NEEDED = {
    "periodic": "periodic:K=3",
    "bernoulli": "bernoulli:p=0.3,D=4,delta_max=0.4",
    "rotating": "rotating:period=4",
    "round-robin": "round-robin:K=3",
    "on-level": "on-level:level=2,K=3",
    "mid-round": "mid-round:K=3",
    "trace": f"trace:file={TRACE},repeat=true",
}
WITHOUT_CHANCE = {"rotating", "round-robin", "trace"}
M, TICKS = 9, 40

NAMES = list(REGISTRIES["switching"].entries())

every_name = each_row("name", NAMES)


def make(name: str, seed: int = 0) -> Switching:
    return make_switching(NEEDED.get(name, name), workers=M, byzantine=3, seed=seed, jmax=4)


def strategies_with(part: str) -> pytest.MarkDecorator:
    """The strategies that have an optional part."""
    return pytest.mark.parametrize(
        "name", [name for name in NAMES if getattr(make(name), part) is not None]
    )


def schedule(name: str, seed: int = 0) -> Tensor:
    switching = make(name, seed)
    return torch.stack([switching.mask(t) for t in range(TICKS)])


@every_name
def test_any_tick_can_be_asked_for_in_any_order_and_again(name: str) -> None:
    expected, switching = schedule(name), make(name)
    assert (expected.shape, expected.dtype) == ((TICKS, M), torch.bool)
    order = torch.randperm(TICKS, generator=torch.Generator().manual_seed(0)).tolist()
    for t in [*order, *reversed(order), 0, TICKS - 1, TICKS - 1]:
        assert torch.equal(switching.mask(t), expected[t])


@every_name
def test_a_schedule_of_the_seed_is_drawn_without_torch(name: str) -> None:
    """Reports draw it again for stored runs, and torch alone takes more memory than a report."""
    switching = make(name)
    if switching.kept:
        return
    assert isinstance(switching.mask, Mask)
    assert isinstance(switching.in_round, Mask | None)
    assert isinstance(switching.within, Mask | None)
    for t in range(TICKS):
        array = switching.mask.array(t)
        assert (type(array), array.dtype) == (np.ndarray, bool)
        assert array.tolist() == switching.mask(t).tolist()


@every_name
def test_a_mask_belongs_to_the_caller(name: str) -> None:
    expected, switching = schedule(name), make(name)
    for t in range(TICKS):
        for _ in range(2):
            mask = switching.mask(t)
            assert torch.equal(mask, expected[t])
            mask.logical_not_()


@every_name
def test_schedule_is_a_function_of_the_seed(name: str) -> None:
    """If three of nine workers are drawn, all ten seeds agree by chance with probability 84^-9,
    less than 1e-17.
    """
    assert torch.equal(schedule(name, seed=3), schedule(name, seed=3))
    different = {tuple(schedule(name, seed).flatten().tolist()) for seed in range(10)}
    assert (len(different) > 1) == (name not in WITHOUT_CHANCE)


@every_name
def test_no_draw_is_taken_from_a_global_generator(name: str) -> None:
    torch.manual_seed(0)
    before = schedule(name)
    torch.manual_seed(1)
    assert torch.equal(schedule(name), before)


@strategies_with("in_round")
def test_who_is_byzantine_at_which_level_can_be_asked_for_in_any_order(name: str) -> None:
    """Also, ``mask`` is the mask of a round of the highest level."""
    expected, strategy, other = schedule(name), make(name), make(name)
    assert strategy.in_round is not None
    assert other.in_round is not None
    asked = [(tick, level) for tick in range(TICKS) for level in (None, 0, 1, 2, 4)]
    answers = {place: strategy.in_round(*place) for place in asked}
    for tick, level in reversed(asked):
        mask = other.in_round(tick, level)
        assert torch.equal(mask, answers[tick, level])
        mask.logical_not_()
    assert all(torch.equal(answers[tick, 4], expected[tick]) for tick in range(TICKS))


@strategies_with("within")
def test_who_is_byzantine_within_which_round_can_be_asked_for_in_any_order(name: str) -> None:
    """Also, a round begins with ``mask``, so that a method of one computation a round meets the
    same sets by both clocks.
    """
    strategy, other = make(name), make(name)
    assert strategy.within is not None
    assert other.within is not None
    places = [
        (number, computation, count)
        for number in range(TICKS)
        for count in (1, 2, 8)
        for computation in range(count)
    ]
    answers = {place: strategy.within(*place) for place in places}
    for place in reversed(places):
        mask = other.within(*place)
        assert torch.equal(mask, answers[place])
        mask.logical_not_()
    assert all(
        torch.equal(answers[number, 0, 1], mask) for number, mask in enumerate(schedule(name))
    )


def test_comparisons_know_which_strategies_follow_the_run() -> None:
    """Two runs with the same seed then face other identities."""
    assert set(FOLLOWING) == {name for name in NAMES if make(name).follow is not None}


@strategies_with("follow")
def test_what_follows_the_run_counts_rounds(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(RunSpec(switching=name, clock="computation"))
    assert caught.value.problems == [
        (
            f"switching {name!r} learns once a round, and clock=computation. Try: --clock round, "
            "or leave it out"
        )
    ]


@strategies_with("follow")
def test_a_schedule_that_follows_the_run_is_not_drawn_again(name: str) -> None:
    run = {
        "method": "sgd",
        "switching": name,
        "clock": "round",
        "workers": 9,
        "byzantine": 3,
        "budget": 5,
        "seed": 0,
    }
    with pytest.raises(SpecError, match="cannot be drawn again; it is stored with the run"):
        identities(run, 5)


@strategies_with("follow")
def test_what_follows_the_run_has_a_state_that_is_data(name: str) -> None:
    """A strategy that follows the run starts with ``mask``, ``learn`` returns a new state, and the
    schedule is stored.
    """
    strategy = make(name)
    assert strategy.follow is not None
    assert strategy.kept
    rule, state = strategy.follow, dict(strategy.follow.initial)
    assert torch.equal(rule.mask(state), strategy.mask(0))
    for ratio in (0.0, None, 1.0, 0.0, 0.3, 2.0):
        before = {key: value.clone() for key, value in state.items()}
        after = rule.learn(state, ratio)
        assert state.keys() == before.keys()
        assert all(torch.equal(state[key], value) for key, value in before.items())
        assert all(isinstance(value, torch.Tensor) for value in after.values())
        assert torch.equal(rule.mask(after), rule.mask(dict(after)))
        rule.mask(after).logical_not_()
        state = after
