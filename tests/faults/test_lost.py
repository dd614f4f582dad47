"""A database that is removed or replaced under a command: a line says so, nothing takes its place,
and it can be put back.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

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
    run,
    sweep,
)
from tests.faults.test_kill import completed, no_process_of
from tests.faults.test_stopped import stopped_at


def told(ended: Ended, what: str, db: Path) -> None:
    assert ended.code == 65, ended
    assert "Traceback" not in ended.err
    (line,) = [line for line in ended.err.splitlines() if line.startswith("dynabro: ")]
    assert line.startswith(
        f"dynabro: {db} was {what} while this command was writing it. Try: put it back"
    ), line


@pytest.mark.parametrize("command", ["run", pytest.param("sweep", marks=pytest.mark.slow)])
def test_a_database_that_is_renamed_under_a_command(
    command: str, clean: Content, place: Place
) -> None:
    words = run(MOMENTUM) if command == "run" else sweep(place)
    process = stopped_at(place, words, "before-commit:3")
    away = place.db.rename(place.folder / "away.db")
    os.kill(process.pid, signal.SIGCONT)
    told(end(process), "removed or replaced", place.db)
    no_process_of(place)
    assert not place.db.exists()
    away.rename(place.db)
    completed(place, words)
    assert "resuming after round" in place.logs()
    check_whole(place, clean, [key_of(clean, MOMENTUM)] if command == "run" else None)


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["before-commit:5", "mid-batch:3"])
def test_a_database_that_is_replaced_under_a_sweep(
    failpoint: str, clean: Content, place: Place
) -> None:
    other = place.folder / "other.db"
    completed(place, ("run", "--task", "quadratic", "--budget", "20", "--db", str(other)))
    before = content(other)
    process = stopped_at(place, sweep(place), failpoint)
    away = place.db.rename(place.folder / "away.db")
    shutil.copy(other, place.db)
    os.kill(process.pid, signal.SIGCONT)
    told(end(process), "removed or replaced", place.db)
    no_process_of(place)
    assert content(place.db) == before
    away.replace(place.db)
    completed(place, sweep(place))
    check_whole(place, clean)
