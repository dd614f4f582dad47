"""Another program that holds the database: it is waited for, and in the end a line says so."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.faults.oracle import (
    MOMENTUM,
    Content,
    Place,
    check_part,
    check_whole,
    end,
    key_of,
    run,
    sweep,
)
from tests.faults.test_kill import completed, no_process_of
from tests.faults.test_signals import at_a_checkpoint, locked
from tests.faults.test_stopped import stopped_at


@pytest.mark.parametrize(
    ("command", "busy"),
    [
        pytest.param("run", "2", marks=pytest.mark.slow),
        pytest.param("sweep", "2", marks=pytest.mark.slow),
        pytest.param("run", "", marks=pytest.mark.slow),
    ],
)
def test_held_for_too_long(command: str, busy: str, clean: Content, place: Place) -> None:
    words = run(MOMENTUM) if command == "run" else sweep(place)
    environment = {"DYNABRO_BUSY_SECONDS": busy} if busy else {}
    process = place.start(*words, **environment)
    at_a_checkpoint(process, place)
    with locked(place.db):
        ended = end(process)
        no_process_of(place)
    assert ended.code == 75, ended
    assert "Traceback" not in ended.err
    lines = [line for line in ended.err.splitlines() if line.startswith("dynabro: ")]
    assert lines == [
        (
            f"dynabro: {place.db} was locked by another program for {busy or 60} s; end that "
            "program, then repeat the command"
        )
    ]
    check_part(place, clean)
    with locked(place.db):  # and before it has begun
        ended = place.do(*words, **environment)
        assert ended.code == 75, ended
        # `run` says first what it is about to make
        assert len(ended.err.splitlines()) == 1 + (command == "run")
        assert ended.err.splitlines()[-1] == lines[0]
    completed(place, words)
    assert "resuming after round" in place.logs()
    check_whole(place, clean, [key_of(clean, MOMENTUM)] if command == "run" else None)


@pytest.mark.slow
def test_held_for_a_while(clean: Content, place: Place) -> None:
    process = stopped_at(place, run(MOMENTUM), "before-commit:3")
    with locked(place.db):
        os.kill(process.pid, signal.SIGCONT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
    ended = end(process)
    assert (ended.code, "Traceback" in ended.err) == (0, False), ended
    check_whole(place, clean, [key_of(clean, MOMENTUM)])
