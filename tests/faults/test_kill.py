"""kill -9 at every place of the writer: what is stored is whole, and the same command completes
it.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.faults.oracle import (
    DYNABRO,
    MOMENTUM,
    Content,
    Ended,
    Place,
    check_part,
    check_whole,
    key_of,
    read,
    run,
    sweep,
)
from tests.faults.processes import of_place, within

PLACES = (
    "before-claim",
    "claim",
    "after-claim",
    "before-commit",
    "mid-batch",
    "after-commit",
    "checkpoint-write",
    "before-rename",
    "after-rename",
    "before-finish",
)
ONCE = ("before-claim", "claim", "after-claim", "before-finish")
"""Places that a run gets to once."""
BROKEN = {MOMENTUM["task"]: 1900, DYNABRO["task"]: 200}
"""Rounds shortly before the end of the runs with seed 0."""


def killed(place: Place, words: tuple[str, ...], failpoint: str) -> None:
    ended = place.do(*words, DYNABRO_FAILPOINT=f"{failpoint}=KILL")
    assert ended.code == -signal.SIGKILL, (failpoint, ended)


def completed(place: Place, words: tuple[str, ...]) -> Ended:
    ended = place.do(*words)
    assert ended.code == 0, ended
    return ended


@pytest.mark.slow
def test_a_run_killed_at_every_place_in_turn(
    clean: Content, new_place: Callable[[str], Place]
) -> None:
    def turn(cell: dict[str, Any], failpoints: list[str]) -> None:
        place, broken = new_place(cell["task"]), BROKEN[cell["task"]]
        for failpoint in failpoints:
            killed(place, run(cell), failpoint)
            check_part(place, clean)
        # what is stored after the last checkpoint is made again
        late = run(cell, 0, "--checkpoint-every", "60", "--jobs", "0")
        ended = place.do(*late, module="tests.faults.prepared", PREPARE=f"broken_round:{broken}")
        assert ended.code == 70, ended
        assert check_part(place, clean) > broken - 20
        killed(place, run(cell), "before-finish")
        completed(place, run(cell))
        assert place.logs().count("resuming after round") > 2
        check_whole(place, clean, [key_of(clean, cell)])
        assert place.checkpoints() == []

    halves = (
        ["before-claim", "after-claim", "mid-batch", "after-commit:2", "before-rename:2"],
        ["claim", "before-commit:3", "checkpoint-write:2", "after-rename", "claim"],
    )
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(turn, (MOMENTUM, DYNABRO), halves))


@pytest.mark.slow
def test_a_sweep_killed_in_turn(clean: Content, place: Place) -> None:
    words = sweep(place, "--set", "seeds=0..1")
    for failpoint in ("after-commit:5", "mid-batch:3"):
        # which waits for the workers, as they hold its standard error
        killed(place, words, failpoint)
        check_part(place, clean)
        no_process_of(place)
    completed(place, words)
    assert "resuming after round" in place.logs()
    check_whole(
        place, clean, [key_of(clean, cell, seed) for cell in (MOMENTUM, DYNABRO) for seed in (0, 1)]
    )
    assert place.checkpoints() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "failpoint", "number"),
    [
        (command, failpoint, number)
        for command in ("run", "sweep")
        for failpoint in PLACES
        for number in (1, 3)
        if not (command == "run" and failpoint in ONCE and number > 1)  # a run gets there once
    ],
)
def test_a_command_killed_at_one_place(
    command: str, failpoint: str, number: int, clean: Content, place: Place
) -> None:
    words = run(MOMENTUM) if command == "run" else sweep(place, "--set", "seeds=0..1")
    killed(place, words, f"{failpoint}:{number}")
    check_part(place, clean)
    no_process_of(place)
    completed(place, words)
    keys = [key_of(clean, MOMENTUM)]
    if command == "sweep":
        keys = [key_of(clean, cell, seed) for cell in (MOMENTUM, DYNABRO) for seed in (0, 1)]
    check_whole(place, clean, keys)


@pytest.mark.slow
def test_a_repetition_that_is_killed_leaves_the_result_and_is_gone_on_with(
    clean: Content, place: Place
) -> None:
    key = key_of(clean, MOMENTUM)
    completed(place, run(MOMENTUM))
    for failpoint in ("after-commit:3", "mid-batch:2"):
        killed(place, run(MOMENTUM, 0, "--rerun"), failpoint)
        assert read(place.db, "SELECT status, rounds FROM runs WHERE run_key = ?", key) == [
            ("finished", 2000)
        ]
    completed(place, run(MOMENTUM, 0, "--rerun"))
    assert "resuming after round" in place.logs()
    check_whole(place, clean, [key])


def finished_within(process: subprocess.Popen[str], seconds: float) -> bool:
    """Let a process live for a random time, unless it ends before."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def no_process_of(place: Place) -> None:
    """Assert that nothing is left of the commands that have ended: their workers die with them."""
    # the kernel ends them one by one
    assert within(10, lambda: not of_place(place.folder)), of_place(place.folder)
