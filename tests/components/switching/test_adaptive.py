"""Adaptive: a new set when the last one's messages were rejected often enough in a row."""

from __future__ import annotations

import math

import pytest

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.api import make_switching
from dynabro_cli.components.switching._api import Follow
from dynabro_cli.core import events


def follow(text: str) -> Follow:
    strategy = make_switching(text, workers=9, byzantine=4)
    assert strategy.follow is not None
    return strategy.follow


def draws(text: str, ratios: list[float | None]) -> list[int]:
    """The number of the set after each round."""
    rule, found = follow(text), []
    state = dict(rule.initial)
    for ratio in ratios:
        state = rule.learn(state, ratio)
        found.append(int(state["draws"]))
    return found


def test_it_moves_when_it_was_rejected_in_a_row() -> None:
    """Two in a row under 0.5; 0.5 is not under it; a round without a message neither counts nor
    breaks the row.
    """
    ratios = [0.4, 0.5, 0.4, 0.3, 0.1, None, 0.2, 1.0, 0.0, 0.0]
    assert draws("adaptive:patience=2", ratios) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


def test_it_moves_at_once_without_patience() -> None:
    assert draws("adaptive:below=2,patience=1", [1.9, 2.0, 1.0]) == [1, 1, 2]


def test_what_is_no_number_is_no_rejection() -> None:
    assert draws("adaptive:patience=1", [math.nan, 0.0]) == [0, 1]


def test_learning_leaves_the_state_that_it_is_given() -> None:
    rule = follow("adaptive:patience=1")
    before = {name: value.clone() for name, value in rule.initial.items()}
    rule.learn(rule.initial, 0.0)
    assert rule.initial == before


def test_the_sets_are_those_of_periodic() -> None:
    rule, periodic = (
        follow("adaptive:patience=1"),
        make_switching("periodic:K=1", workers=9, byzantine=4),
    )
    state = dict(rule.initial)
    for number in range(5):
        assert rule.mask(state).tolist() == periodic.mask(number).tolist()
        state = rule.learn(state, 0.0)


@pytest.mark.thorough
def test_a_run_moves_as_the_acceptance_of_its_rounds_says() -> None:
    """Sign flipping against CWTM on the quadratic: the schedule follows from the recorded rounds,
    and is stored.
    """
    below, patience = 0.7, 3
    spec = RunSpec(
        task="quadratic",
        method="momentum",
        attack="sf",
        aggregator="cwtm",
        workers=9,
        byzantine=3,
        budget=200,
        switching=f"adaptive:below={below},patience={patience}",
    )
    stream = [event for event in simulate(spec, threads=1) if isinstance(event, events.RoundsDone)]
    rounds = [item for event in stream for item in event.rounds]
    sets = make_switching("periodic:K=1", workers=9, byzantine=3)
    number, rejected, schedule = 0, 0, []
    for item in rounds:
        schedule.append(tuple(worker + 1 for worker in sets.mask(number).nonzero()[:, 0].tolist()))
        assert item.acceptance is not None
        rejected = rejected + 1 if item.acceptance < below else 0
        if rejected == patience:
            number, rejected = number + 1, 0
    assert number > 3  # else nothing is seen
    told = [change for event in stream for change in event.identities]
    changed = [tick for tick in range(200) if not tick or schedule[tick] != schedule[tick - 1]]
    assert [(change.tick, change.byzantine) for change in told] == [
        (tick, schedule[tick]) for tick in changed
    ]
    assert [item.round for item in rounds if item.switched] == [change.tick for change in told[1:]]
