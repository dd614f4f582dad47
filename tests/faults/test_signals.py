"""Ctrl-C and SIGTERM, as of a cluster that wants its machine back, in every phase."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynabro_cli.runs.executors.interruptions import ONE_SECONDS
from tests.faults.oracle import (
    DYNABRO,
    MOMENTUM,
    Content,
    Ended,
    Place,
    check_part,
    check_whole,
    end,
    key_of,
    read,
    run,
    sweep,
)
from tests.faults.test_kill import completed, finished_within, no_process_of

CODES = {"TERM": 75, "INT": 130}
SECONDS = 10
"""Twice what a command may take to end, for slow machines."""


def soon(process: subprocess.Popen[str], name: str) -> Ended:
    """Wait for the end of a command that got a signal."""
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == CODES.get(name, 75), (process.returncode, err)
    assert "Traceback" not in err
    return Ended(process.returncode, out, err)


def tell(process: subprocess.Popen[str], name: str) -> None:
    """Send a signal to all processes of a command, as terminals and clusters do."""
    os.killpg(process.pid, signal.Signals["SIG" + name])


def at_a_checkpoint(process: subprocess.Popen[str], place: Place) -> None:
    """Wait until a run is in progress that has a checkpoint; only the database tells."""
    while not place.holds("SELECT 1 FROM runs WHERE status = 'running' AND checkpoint IS NOT NULL"):
        assert not finished_within(process, 0.02)


@contextlib.contextmanager
def locked(db: Path) -> Iterator[sqlite3.Connection]:
    """Hold the database as another program would."""
    with contextlib.closing(sqlite3.connect(db, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch", "TERM"),
        pytest.param("torch", "INT", marks=pytest.mark.slow),
        pytest.param("torch._C", "TERM", marks=pytest.mark.slow),
        pytest.param("numpy", "TERM", marks=pytest.mark.slow),
        pytest.param("sqlalchemy", "TERM", marks=pytest.mark.slow),
        pytest.param("sqlalchemy.dialects.sqlite", "INT", marks=pytest.mark.slow),
        pytest.param("dynabro_cli.runs.store.write.recorder", "TERM", marks=pytest.mark.slow),
        pytest.param("sklearn", "TERM", marks=pytest.mark.slow),
        pytest.param("sklearn", "INT", marks=pytest.mark.slow),
    ],
)
def test_while_it_starts(module: str, name: str, place: Place) -> None:
    words = run(DYNABRO, 0, "--jobs", "0")
    process = place.start(
        *words, module="tests.faults.prepared", PREPARE=f"signal_at_import:{module}={name}"
    )
    ended = end(process)
    assert (ended.code, "Traceback" in ended.err) == (CODES[name], False), ended
    assert not place.holds("SELECT 1 FROM runs WHERE status <> 'interrupted'")


def interrupted_at(place: Place, words: tuple[str, ...], failpoint: str, name: str) -> None:
    process = place.start(*words, DYNABRO_FAILPOINT=f"{failpoint}={name}")
    ended = end(process)
    assert ended.code == CODES[name], (failpoint, ended)
    assert "Traceback" not in ended.err
    assert read(place.db, "SELECT COUNT(*) FROM runs WHERE status = 'running'") == [(0,)]


@pytest.mark.slow
def test_a_run_at_the_writers_places_in_turn(clean: Content, place: Place) -> None:
    for failpoint, name in (
        ("before-claim", "TERM"),
        ("claim", "INT"),
        ("mid-batch:2", "TERM"),
        ("before-rename", "INT"),
    ):
        interrupted_at(place, run(MOMENTUM), failpoint, name)
        assert check_part(place, clean) > 0  # there is a checkpoint: the same command goes on
    completed(place, run(MOMENTUM))
    assert place.logs().count("resuming after round") == 4
    check_whole(place, clean, [key_of(clean, MOMENTUM)])


@pytest.mark.slow
@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize(
    "failpoint",
    ["before-claim", "claim", "after-claim", "before-commit:3", "after-commit:3", "after-rename:2"],
)
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_at_one_place(
    command: str, failpoint: str, name: str, clean: Content, place: Place
) -> None:
    words = run(DYNABRO) if command == "run" else sweep(place)
    interrupted_at(place, words, failpoint, name)
    check_part(place, clean)
    completed(place, words)
    check_whole(place, clean, [key_of(clean, DYNABRO)] if command == "run" else None)


@pytest.mark.parametrize(
    "name", ["TERM", *(pytest.param(other, marks=pytest.mark.slow) for other in ("USR1", "INT"))]
)
def test_all_processes_of_a_sweep_are_told(name: str, clean: Content, place: Place) -> None:
    words = sweep(place, "--set", "seeds=0..1")
    process = place.start(*words)
    at_a_checkpoint(process, place)
    tell(process, name)
    ended = soon(process, name)
    no_process_of(place)
    assert "the same command resumes from here" in ended.err
    assert place.holds("SELECT 1 FROM runs WHERE status = 'interrupted'")
    assert not place.holds("SELECT 1 FROM runs WHERE status NOT IN ('finished', 'interrupted')")
    check_part(place, clean)
    completed(place, words)
    assert "resuming after round" in place.logs()
    check_whole(
        place, clean, [key_of(clean, cell, seed) for cell in (MOMENTUM, DYNABRO) for seed in (0, 1)]
    )


@pytest.mark.parametrize("name", ["TERM", pytest.param("INT", marks=pytest.mark.slow)])
def test_while_another_program_holds_the_database(name: str, clean: Content, place: Place) -> None:
    process = place.start(*run(MOMENTUM))
    assert process.stderr is not None
    process.stderr.readline()  # what is run
    process.stderr.readline()  # the first evaluation
    with locked(place.db):
        tell(process, name)
        soon(process, name)
    check_part(place, clean)
    with locked(place.db):  # and before the run has begun
        process = place.start(
            *run(MOMENTUM), module="tests.faults.prepared", PREPARE=f"signal_at_lock:{name}"
        )
        soon_after_start = end(process)
        assert soon_after_start.code == CODES[name], soon_after_start
    completed(place, run(MOMENTUM))
    check_whole(place, clean, [key_of(clean, MOMENTUM)])


def until_stuck(process: subprocess.Popen[str], place: Place) -> None:
    """Wait until a run is in the round that takes for ever."""
    while "stuck" not in place.logs():
        assert not finished_within(process, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_round_that_takes_too_long(command: str, clean: Content, place: Place) -> None:
    words = run(MOMENTUM) if command == "run" else sweep(place)
    process = place.start(*words, module="tests.faults.prepared", PREPARE="workers:stuck")
    until_stuck(process, place)
    tell(process, "TERM")
    soon(process, "TERM")
    no_process_of(place)
    check_part(place, clean)
    completed(place, words)
    check_whole(place, clean, [key_of(clean, MOMENTUM)] if command == "run" else None)


@pytest.mark.slow
@pytest.mark.parametrize("name", CODES)
def test_a_second_signal_ends_it_at_once(name: str, clean: Content, place: Place) -> None:
    process = place.start(*run(MOMENTUM), module="tests.faults.prepared", PREPARE="workers:stuck")
    until_stuck(process, place)
    tell(process, name)
    assert not finished_within(process, 2 * ONE_SECONDS)
    tell(process, name)
    assert "ended at once" in soon(process, name).err
    completed(place, run(MOMENTUM))
    check_whole(place, clean, [key_of(clean, MOMENTUM)])
