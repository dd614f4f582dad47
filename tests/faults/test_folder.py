"""A folder of checkpoints and logs that cannot be written: runs continue without, and a line says
so.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.faults.oracle import (
    DYNABRO,
    MOMENTUM,
    Content,
    Ended,
    Place,
    check_whole,
    end,
    key_of,
    run,
    sweep,
)

PREPARED = {"module": "tests.faults.prepared", "PREPARE": "ordinary_user"}
KINDS = ("checkpoints", "logs")


@pytest.fixture
def place(place: Place) -> Iterator[Place]:
    """A place whose folders are there, and can be removed in the end."""
    for kind in KINDS:
        (place.folder / "results.db.d" / kind).mkdir(parents=True)
    yield place
    allow(place, 0o755)


def allow(place: Place, mode: int, *kinds: str) -> None:
    for kind in kinds or KINDS:
        (place.folder / "results.db.d" / kind).chmod(mode)


def warnings(ended: Ended) -> list[str]:
    assert ended.code == 0, ended
    assert "Traceback" not in ended.err
    lines = [line for line in ended.err.splitlines() if line.startswith("dynabro: ")]
    assert all(line.startswith("dynabro: warning: ") for line in lines), lines
    return [line.removeprefix("dynabro: warning: ") for line in lines]


@pytest.mark.parametrize("command", ["run", pytest.param("sweep", marks=pytest.mark.slow)])
def test_folders_that_cannot_be_written(command: str, clean: Content, place: Place) -> None:
    allow(place, 0o555)
    words = run(MOMENTUM) if command == "run" else sweep(place, "--set", "seeds=0..0")
    (line,) = warnings(place.do(*words, **PREPARED))
    folder = place.folder / "results.db.d"
    assert line.startswith(
        f"{folder}/checkpoints and {folder}/logs cannot be written (Permission denied); runs "
        "continue without "
    )
    check_whole(
        place,
        clean,
        [
            key_of(clean, cell)
            for cell in ((MOMENTUM,) if command == "run" else (MOMENTUM, DYNABRO))
        ],
    )
    assert place.checkpoints() == []
    assert place.logs() == ""


@pytest.mark.parametrize("command", ["run", pytest.param("sweep", marks=pytest.mark.slow)])
def test_a_folder_that_becomes_unwritable(command: str, clean: Content, place: Place) -> None:
    words = run(MOMENTUM) if command == "run" else sweep(place)
    process = place.start(*words, **PREPARED, DYNABRO_FAILPOINT="before-commit:3=STOP")
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert process.poll() is None, end(process)
    allow(place, 0o555, "checkpoints")
    os.kill(process.pid, signal.SIGCONT)
    (line,) = warnings(end(process))
    assert line.startswith(
        f"{place.folder}/results.db.d/checkpoints cannot be written (Permission denied); runs "
        "continue "
    )
    check_whole(place, clean, [key_of(clean, MOMENTUM)] if command == "run" else None)
