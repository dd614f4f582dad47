"""Round-robin: who takes which turn, by hand."""

from __future__ import annotations

import pytest

from dynabro_cli.components.api import make_switching
from dynabro_cli.core.errors import SpecError


def turns(text: str, workers: int, byzantine: int, ticks: int) -> list[list[int]]:
    strategy = make_switching(text, workers=workers, byzantine=byzantine)
    return [strategy.mask(tick).nonzero()[:, 0].tolist() for tick in range(ticks)]


def test_consecutive_workers_take_turns_and_begin_again_behind_the_last() -> None:
    """Five workers, two at a time, two ticks a turn: 0 1, 2 3, 4 0, 1 2, 3 4, and again."""
    expected = [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4], [0, 1]]
    assert turns("round-robin:K=2", 5, 2, 12) == [turn for turn in expected for _ in range(2)]


def test_every_worker_takes_as_many_turns() -> None:
    seen = [worker for turn in turns("round-robin:K=1", 17, 8, 17) for worker in turn]
    assert [seen.count(worker) for worker in range(17)] == [8] * 17


def test_nobody_where_nobody_is_declared() -> None:
    assert turns("round-robin:K=1", 5, 0, 3) == [[], [], []]


def test_it_says_how_many_there_always_are() -> None:
    assert make_switching("round-robin:K=3", workers=9, byzantine=4).always == 4


def test_more_than_there_are() -> None:
    with pytest.raises(SpecError, match="byzantine=6 of workers=5"):
        make_switching("round-robin:K=1", workers=5, byzantine=6)
