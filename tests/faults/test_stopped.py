"""A process that is stopped until it is presumed dead, and goes on when another has taken over: it
writes no more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess

import pytest

from tests.faults.oracle import (
    MOMENTUM,
    Content,
    Ended,
    Place,
    check_whole,
    content,
    end,
    key_of,
    read,
    run,
    sweep,
)

LEASE = {"DYNABRO_LEASE_SECONDS": "1"}
"""Lease of commands that take over. The first command has the usual lease, so that it is not
stopped in a heartbeat.
"""
OTHERS = ("after-claim", "before-commit:3", "after-commit:3", "before-finish")


def stopped_at(place: Place, words: tuple[str, ...], failpoint: str) -> subprocess.Popen[str]:
    """A command that has stopped itself at a place."""
    process = place.start(*words, DYNABRO_FAILPOINT=f"{failpoint}=STOP")
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert process.poll() is None, end(process)
    return process


def taken_over(place: Place, words: tuple[str, ...]) -> Ended:
    """Repeat the command until the other process's lease is over."""
    while (ended := place.do(*words, **LEASE)).code == 75:
        assert "is in progress in process" in ended.err
    return ended


@pytest.mark.parametrize(
    "failpoint",
    ["before-rename:2", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)],
)
def test_a_run(failpoint: str, clean: Content, place: Place) -> None:
    first = stopped_at(place, run(MOMENTUM), failpoint)
    ended = taken_over(place, run(MOMENTUM))
    assert ended.code == 0, ended
    check_whole(place, clean, [key_of(clean, MOMENTUM)])
    owner = read(place.db, "SELECT pid, started_at, finished_at FROM runs")
    os.kill(first.pid, signal.SIGCONT)
    late = end(first)
    assert late.code == 0, late  # what was asked for is stored, by the other
    assert "run 1, stored in" in late.out
    check_whole(place, clean, [key_of(clean, MOMENTUM)])
    assert read(place.db, "SELECT pid, started_at, finished_at FROM runs") == owner
    assert place.checkpoints() == []


@pytest.mark.slow
def test_it_leaves_the_files_of_its_successor_alone(clean: Content, place: Place) -> None:
    first = stopped_at(place, run(MOMENTUM), "after-commit:1")
    with contextlib.closing(sqlite3.connect(place.db)) as connection, connection:
        connection.execute(
            "UPDATE runs SET heartbeat_at = '2000-01-01 00:00:00.000000', heartbeat_clock = NULL"
        )
    second = stopped_at(place, run(MOMENTUM), "after-commit:1")
    ((name,),) = read(place.db, "SELECT checkpoint FROM runs")
    os.kill(first.pid, signal.SIGCONT)
    assert first.stderr is not None
    while "waiting for 1 run in progress elsewhere" not in (line := first.stderr.readline()):
        assert line, "the first does not wait for the second"
    assert name in [path.name for path in place.checkpoints()]
    os.kill(second.pid, signal.SIGCONT)
    ended = end(second)
    assert ended.code == 0, ended
    assert end(first).code == 0
    check_whole(place, clean, [key_of(clean, MOMENTUM)])
    assert place.checkpoints() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint",
    ["after-claim", "before-commit:5", "before-rename:3", "after-commit:5", "before-finish:2"],
)
def test_a_sweep(failpoint: str, clean: Content, place: Place) -> None:
    first = stopped_at(place, sweep(place), failpoint)
    second = place.do(*sweep(place), **LEASE)  # it waits for what the first has in progress
    assert second.code == 0, second
    stored = content(place.db)
    check_whole(place, clean)
    os.kill(first.pid, signal.SIGCONT)
    late = end(first)
    assert late.code == 0, late
    assert content(place.db) == stored
    assert place.checkpoints() == []
