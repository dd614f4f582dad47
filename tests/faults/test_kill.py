"""kill -9 at every place of the writer, and at random: what is stored is whole, and the same command completes it."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.faults.oracle import DYNABRO, MOMENTUM, Content, Ended, Place, check_part, check_whole, end, key_of, read, run, sweep

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


def test_a_run_killed_at_every_place_in_turn(clean: Content, new_place: Callable[[str], Place]) -> None:
    def turn(cell: dict[str, Any], failpoints: list[str]) -> None:
        place, broken = new_place(cell["task"]), BROKEN[cell["task"]]
        for failpoint in failpoints:
            killed(place, run(cell), failpoint)
            check_part(place, clean)
        late = run(cell, 0, "--checkpoint-every", "60")  # what is stored after the last checkpoint is made again
        ended = place.do(*late, module="tests.faults.prepared", PREPARE=f"broken_round:{broken}")
        assert ended.code == 70, ended
        assert check_part(place, clean) > broken - 20
        killed(place, run(cell), "before-finish")
        completed(place, run(cell))
        assert place.logs().count("going on after round") > 2
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
        killed(place, words, failpoint)  # which waits for the workers, as they hold its standard error
        check_part(place, clean)
        no_process_of(place)
    completed(place, words)
    assert "going on after round" in place.logs()
    check_whole(place, clean, [key_of(clean, cell, seed) for cell in (MOMENTUM, DYNABRO) for seed in (0, 1)])
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
def test_a_command_killed_at_one_place(command: str, failpoint: str, number: int, clean: Content, place: Place) -> None:
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
def test_a_repetition_that_is_killed_leaves_the_result_and_is_gone_on_with(clean: Content, place: Place) -> None:
    key = key_of(clean, MOMENTUM)
    completed(place, run(MOMENTUM))
    for failpoint in ("after-commit:3", "mid-batch:2"):
        killed(place, run(MOMENTUM, 0, "--rerun"), failpoint)
        assert read(place.db, "SELECT status, rounds FROM runs WHERE run_key = ?", key) == [("finished", 2000)]
    completed(place, run(MOMENTUM, 0, "--rerun"))
    assert "going on after round" in place.logs()
    check_whole(place, clean, [key])


@pytest.mark.parametrize(
    ("kills", "jobs"), [pytest.param(4, 2, marks=pytest.mark.slow), pytest.param(100, 4, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(3600)
def test_random_kills(kills: int, jobs: int, clean: Content, new_place: Callable[[str], Place]) -> None:
    """Any process of a sweep at any moment; a run that is stored as finished stays, and in the end all is there."""
    chance = random.Random(kills)
    done: Counter[str] = Counter()
    for number in itertools.count():
        place, finished = new_place(str(number)), set[tuple[object, ...]]()
        while True:
            process = place.start(*sweep(place, "--max-retries", "99", "--retry-failed", jobs=jobs))
            while done.total() < kills and process.poll() is None:
                victim = kill_one(process, jobs, chance)
                done.update([victim] if victim else [])
            ended = end(process)
            no_process_of(place)
            if place.holds("SELECT 1 FROM runs"):
                check_part(place, clean)
                now = set(read(place.db, "SELECT id, run_key, started_at, finished_at FROM runs WHERE status = 'finished'"))
                assert finished <= now
                finished = now
            if ended.code == 0:
                break
            assert ended.code == -signal.SIGKILL or "3 worker processes in a row ended" in ended.err, ended
        check_whole(place, clean)
        print(f"killed {dict(done)}, sweeps completed {number + 1}, rows lost 0", flush=True)
        if done.total() >= kills:
            break


def kill_one(process: subprocess.Popen[str], jobs: int, chance: random.Random) -> str | None:
    """Kill a random one of a sweep's processes at a random moment of its life; return which, None where it was gone."""
    scheduler = chance.randrange(jobs + 1) == 0
    while not scheduler and not workers(process.pid) and not finished_within(process, 0.02):
        pass
    if finished_within(process, chance.uniform(0, 8)):
        return None
    victims = [process.pid] if scheduler else workers(process.pid)
    if not victims:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(victims), signal.SIGKILL)
        if scheduler:
            process.wait()
    return "scheduler" if scheduler else "worker"


def finished_within(process: subprocess.Popen[str], seconds: float) -> bool:
    """Let a process live for a random time, unless it ends before."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def workers(pid: int) -> list[int]:
    """The worker processes of a scheduler."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in children if b"spawn_main" in command_line(int(child))]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def no_process_of(place: Place) -> None:
    """Assert that nothing is left of the commands that have ended: their workers die with them."""
    gone = time.monotonic() + 10  # the kernel ends them one by one
    while left := [pid for pid in everyone() if cwd(pid) == place.folder]:
        assert time.monotonic() < gone, left


def everyone() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def cwd(pid: int) -> Path | None:
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        return None
