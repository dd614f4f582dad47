"""Mid-round: one round in K is dynamic, whatever its level."""

from __future__ import annotations

import numpy as np
import pytest

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.api import make_switching
from dynabro_cli.core import events
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.schedule import identities

BRIEF = {
    "task": "quadratic",
    "method": "dynabro:jmax=3",
    "workers": 17,
    "byzantine": 8,
    "budget": 300,
    "attack": "sf",
}


def rounds(**fields: object) -> list[events.Round]:
    found = simulate(RunSpec(**BRIEF | {"clock": "computation"} | fields), threads=1)  # type: ignore[arg-type]
    return [
        item for event in found if isinstance(event, events.RoundsDone) for item in event.rounds
    ]


def test_the_sets_are_those_of_periodic_and_change_at_half_of_a_round() -> None:
    """K = 3: round 2 of 0, 1, ... begins with the first set and ends with the second; one
    computation belongs to the first.
    """
    strategy = make_switching("mid-round:K=3", workers=9, byzantine=4)
    periodic = make_switching("periodic:K=3", workers=9, byzantine=4)
    assert strategy.within is not None
    first, second = periodic.mask(2).tolist(), periodic.mask(3).tolist()
    assert first != second
    assert [strategy.within(2, k, 8).tolist() for k in range(8)] == [first] * 4 + [second] * 4
    assert [strategy.within(2, 0, 1).tolist(), strategy.within(3, 7, 8).tolist()] == [first, second]
    assert [strategy.mask(t).tolist() for t in range(20)] == [
        periodic.mask(t).tolist() for t in range(20)
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("K", [1, 4])
def test_one_round_in_k_is_dynamic_whatever_its_level(K: int) -> None:
    done = rounds(switching=f"mid-round:K={K}")
    assert {item.cost for item in done} == {1, 2, 4, 8}
    assert [item.dynamic for item in done] == [
        (item.round + 1) % K == 0 and item.cost > 1 for item in done
    ]
    assert {item.byzantine for item in done} == {8}


def test_identities_change_between_rounds_if_the_clock_counts_those() -> None:
    done = rounds(switching="mid-round:K=4", clock="round")
    assert not any(item.dynamic for item in done)
    assert [item.round for item in done if item.switched] == list(range(4, len(done), 4))


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["dynabro:jmax=3", "dynabro:jmax=3,filter=option1"])
def test_the_schedule_can_be_drawn_again(method: str) -> None:
    """Also behind the computations that measure V, which belong to no round."""
    run = resolve(
        RunSpec(**BRIEF | {"method": method, "switching": "mid-round:K=2", "clock": "computation"})
    )  # type: ignore[arg-type]
    done = rounds(method=method, switching="mid-round:K=2")
    columns = {
        name: getattr(run.spec, name)
        for name in ("method", "switching", "clock", "workers", "byzantine", "budget")
    }
    masks = identities(columns | {"seed": 0}, done[-1].budget)
    for item in done:
        ticks = range(item.budget - item.cost, item.budget)
        assert item.dynamic == any(
            not np.array_equal(masks[tick], masks[ticks[0]]) for tick in ticks
        )
