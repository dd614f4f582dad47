"""Evade: UCB1 over patterns of on and off, with accepted messages as its reward."""

from __future__ import annotations

import math

import pytest
import torch

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.api import make_switching
from dynabro_cli.components.switching._api import Follow, State
from dynabro_cli.components.switching.evade import upper_confidence
from dynabro_cli.core import events
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row


def follow(text: str, workers: int = 9, byzantine: int = 3) -> Follow:
    strategy = make_switching(text, workers=workers, byzantine=byzantine)
    assert strategy.follow is not None
    return strategy.follow


def states(rule: Follow, ratios: list[float | None]) -> list[State]:
    """The state before each round, and after the last one."""
    found = [dict(rule.initial)]
    for ratio in ratios:
        found.append(rule.learn(found[-1], ratio))
    return found


def test_patterns_in_their_order() -> None:
    """Three workers, blocks of four rounds, without reward: each pattern in turn, by worker."""
    rule = follow("evade:block=4")
    members = make_switching("static", workers=9, byzantine=3).mask(0)
    played = [rule.mask(state) for state in states(rule, [None] * 19)]
    assert not any(bool(mask[~members].any()) for mask in played)
    schedule = torch.stack(played)[:, members].T.int().tolist()
    assert ["".join(map(str, row)) for row in schedule] == [
        "1111" + "1010" + "1100" + "1010" + "0000",
        "1111" + "1010" + "1100" + "0101" + "0000",
        "1111" + "1010" + "1100" + "1010" + "0000",
    ]


def test_rewards_by_hand() -> None:
    """Two rounds a block. Ratios over 1 count as 1, NaN and none as 0; halves weigh 2/3 and 1/3."""
    rule = follow("evade:block=2")
    ratios = [0.5, 2.0, 0.6, None, 0.4, None, 0.3, 0.9, None, None]
    last = states(rule, ratios)[-1]
    assert last["plays"].tolist() == [1, 1, 1, 1, 1]
    assert last["rewards"].tolist() == pytest.approx([0.75, 0.3, 0.2, (0.2 + 0.3) / 2, 0.0])
    assert (int(last["place"]), float(last["gained"])) == (0, 0.0)
    middle = states(rule, [0.5])[-1]
    assert (int(middle["place"]), float(middle["gained"])) == (1, 0.5)
    assert float(states(rule, [math.nan])[-1]["gained"]) == 0.0


def test_upper_confidence_by_hand() -> None:
    # ln 10 = 2.303: 1 + sqrt(4.605/5) = 1.960, 0.75 + sqrt(4.605/4) = 1.823, sqrt(4.605) = 2.146
    assert upper_confidence([5, 4, 1], [5.0, 3.0, 0.0]) == 2
    # ln 11 = 2.398: 1.979, 1.845, sqrt(4.796/2) = 1.549
    assert upper_confidence([5, 4, 2], [5.0, 3.0, 0.0]) == 0
    assert upper_confidence([2, 2, 2], [1.0, 1.0, 1.0]) == 0
    assert upper_confidence([3, 0, 0], [3.0, 0.0, 0.0]) == 1


@each_row("best", range(4))
def test_it_plays_most_what_is_accepted(best: int) -> None:
    """Only one pattern's messages are accepted."""
    rule = follow("evade:block=2")
    state = dict(rule.initial)
    for _ in range(400):
        plays = state["plays"].tolist()
        playing = upper_confidence(plays, state["rewards"].tolist())
        state = rule.learn(state, float(playing == best))
    plays = state["plays"].tolist()
    assert plays[best] == max(plays)
    assert plays[best] > 2 * sorted(plays)[-2]


@each_row(("workers", "byzantine"), [(1, 0), (1, 1), (4, 0), (4, 1), (4, 4), (5, 2)])
def test_every_number_of_workers(workers: int, byzantine: int) -> None:
    rule = follow("evade:block=3", workers, byzantine)
    found = states(rule, [0.5, None, 1.0] * 12)
    masks = [rule.mask(state) for state in found]
    assert int(masks[0].sum()) == byzantine
    assert max(int(mask.sum()) for mask in masks) == byzantine
    assert not bool(masks[12].any())
    assert all(float(state["rewards"].sum()) <= 12 for state in found)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["momentum", "dynabro:jmax=2"])
def test_a_run_chooses_as_the_acceptance_of_its_rounds_says(method: str) -> None:
    """Sign flipping against CWTM: the schedule follows from the recorded rounds, and is stored,
    also the changes to nobody.
    """
    spec = RunSpec(
        task="quadratic",
        method=method,
        attack="sf",
        aggregator="cwtm",
        workers=9,
        byzantine=3,
        budget=150,
        switching="evade:block=3",
    )
    stream = [event for event in simulate(spec, threads=1) if isinstance(event, events.RoundsDone)]
    rounds = [item for event in stream for item in event.rounds]
    rule = follow("evade:block=3")
    schedule = [
        tuple(worker + 1 for worker in rule.mask(state).nonzero()[:, 0].tolist())
        for state in states(rule, [item.acceptance for item in rounds])[:-1]
    ]
    assert [item.byzantine for item in rounds] == [len(members) for members in schedule]
    assert all((item.acceptance is None) == (not item.byzantine) for item in rounds)
    stored = [change for event in stream for change in event.identities]
    changed = [
        tick for tick in range(len(rounds)) if not tick or schedule[tick] != schedule[tick - 1]
    ]
    assert [(change.tick, change.byzantine) for change in stored] == [
        (tick, schedule[tick]) for tick in changed
    ]
    assert () in schedule
    assert len(set(schedule)) == 4  # all, two, the third, none


def test_legal_ranges() -> None:
    with pytest.raises(SpecError, match="block must be a whole number >= 2"):
        make_switching("evade:block=1", workers=9, byzantine=3)
    with pytest.raises(SpecError, match="byzantine=10 of workers=9 is not legal"):
        make_switching("evade", workers=9, byzantine=10)
