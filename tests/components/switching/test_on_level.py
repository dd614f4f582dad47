"""On-level: Byzantine in the rounds of a high MLMC level, and in no other."""

from __future__ import annotations

import numpy as np
import pytest

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.api import make_switching
from dynabro_cli.core import events
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.schedule import identities

BRIEF = {
    "task": "quadratic",
    "method": "dynabro:jmax=3",
    "workers": 9,
    "byzantine": 4,
    "budget": 300,
    "attack": "sf",
}


def rounds(**fields: object) -> list[events.Round]:
    found = simulate(RunSpec(**BRIEF | fields), threads=1)  # type: ignore[arg-type]
    return [
        item for event in found if isinstance(event, events.RoundsDone) for item in event.rounds
    ]


def test_who_attacks_at_which_level() -> None:
    """Level 2 of 0 to 4; None is a round without levels."""
    strategy = make_switching("on-level:level=2", workers=9, byzantine=4, jmax=4)
    assert strategy.in_round is not None
    counts = [int(strategy.in_round(7, level).sum()) for level in (None, 0, 1, 2, 3, 4)]
    assert counts == [0, 0, 0, 4, 4, 4]


def test_the_set_stays_or_is_drawn_every_k_ticks() -> None:
    still = make_switching("on-level:level=1", workers=9, byzantine=4, jmax=4)
    drawn = make_switching("on-level:level=1,K=3", workers=9, byzantine=4, jmax=4)
    assert still.in_round is not None
    assert drawn.in_round is not None
    assert len({tuple(still.in_round(tick, 1).tolist()) for tick in range(30)}) == 1
    periodic = make_switching("periodic:K=3", workers=9, byzantine=4)
    assert [drawn.in_round(t, 1).tolist() for t in range(30)] == [
        periodic.mask(t).tolist() for t in range(30)
    ]


def test_a_run_is_honest_in_all_other_rounds() -> None:
    """Rounds with J > jmax have no correction, and cost 1 like rounds without a level."""
    done = rounds(switching="on-level:level=2")
    assert {item.cost for item in done} == {1, 2, 4, 8}
    assert [item.byzantine for item in done] == [4 if item.cost >= 4 else 0 for item in done]
    assert any((item.level or 0) > 3 for item in done)


def test_within_a_round_of_many_computations_identities_change_where_the_clock_counts_those() -> (
    None
):
    done = rounds(switching="on-level:level=2,K=1", clock="computation")
    assert [item.dynamic for item in done] == [item.cost >= 4 for item in done]


@pytest.mark.thorough
@pytest.mark.parametrize("clock", ["round", "computation"])
@pytest.mark.parametrize("method", ["dynabro:jmax=3", "dynabro:jmax=3,filter=option1"])
def test_the_schedule_can_be_drawn_again(clock: str, method: str) -> None:
    """Also behind the computations that measure V, which are ticks, too."""
    run = resolve(
        RunSpec(**BRIEF | {"method": method, "switching": "on-level:level=2,K=5", "clock": clock})
    )  # type: ignore[arg-type]
    done = rounds(method=method, switching="on-level:level=2,K=5", clock=clock)
    spent = done[-1].budget
    columns = {
        name: getattr(run.spec, name)
        for name in ("method", "switching", "clock", "workers", "byzantine", "budget")
    }
    masks = identities(columns | {"seed": 0}, len(done) if clock == "round" else spent)
    for item in done:
        ticks = [item.round] if clock == "round" else range(item.budget - item.cost, item.budget)
        assert max(int(masks[tick].sum()) for tick in ticks) == item.byzantine
        assert item.dynamic == any(
            not np.array_equal(masks[tick], masks[ticks[0]]) for tick in ticks
        )


@pytest.mark.parametrize(
    ("method", "level", "problem"),
    [
        (
            "sgd",
            2,
            (
                "switching 'on-level' attacks at a level of MLMC, and the method has none. Try: "
                "the method dynabro, or "
            ),
        ),
        (
            "dynabro:jmax=3",
            4,
            (
                "switching 'on-level': level=4 never occurs, because the method's jmax is 3. Try: "
                "level=3 or less"
            ),
        ),
    ],
)
def test_methods_without_such_a_level(method: str, level: int, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(RunSpec(**BRIEF | {"method": method, "switching": f"on-level:level={level}"}))  # type: ignore[arg-type]
    assert [line[: len(problem)] for line in caught.value.problems] == [problem]
