"""A disk that is full for the database or for a checkpoint: a line says so, and with room it goes
on.
"""

from __future__ import annotations

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
    content,
    key_of,
    read,
    run,
    sweep,
)
from tests.faults.test_kill import completed, no_process_of

LARGE = DYNABRO | {
    "model": "mlp:hidden=200",
    "method": "momentum:beta=0.9",
    "attack": "sf",
    "budget": 300,
}
"""A run whose checkpoints are larger than its database."""


def full(place: Place, words: tuple[str, ...], fault: str) -> Ended:
    """Make a command meet a full disk."""
    before = (
        read(place.db, "SELECT run_key, id, finished_at FROM runs WHERE status = 'finished'")
        if place.db.exists()
        else []
    )
    ended = place.do(*words, module="tests.faults.prepared", PREPARE=fault)
    assert ended.code == 74, ended
    assert "Traceback" not in ended.err
    told = [line for line in ended.err.splitlines() if line.startswith("dynabro: ")]
    (line,) = (line for line in told if not line.startswith("dynabro: warning: "))
    assert line.endswith("make room; what was stored before is intact")
    assert all("runs continue without logs" in warning for warning in told if warning != line)
    no_process_of(place)
    if place.holds("SELECT 1"):
        assert read(place.db, "PRAGMA integrity_check") == [("ok",)]
        after = read(
            place.db, "SELECT run_key, id, finished_at FROM runs WHERE status = 'finished'"
        )
        assert set(before) <= set(after)
        assert read(place.db, "SELECT COUNT(*) FROM runs WHERE status = 'failed'") == [(0,)]
    return ended


def size(place: Place) -> int:
    ((count,),) = read(place.db, "PRAGMA page_count")
    return int(count)


@pytest.mark.parametrize("fault", ["pages", pytest.param("file_size", marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", ["run", pytest.param("sweep", marks=pytest.mark.slow)])
def test_no_room_for_the_database(command: str, fault: str, clean: Content, place: Place) -> None:
    completed(place, run(DYNABRO))
    words = run(MOMENTUM) if command == "run" else sweep(place)
    limit = size(place) + 20
    # the latter for the log, too
    full(place, words, f"pages:{limit}" if fault == "pages" else f"file_size:{10 * 4096}")
    check_part(place, clean)
    completed(place, words)
    check_whole(
        place,
        clean,
        [key_of(clean, cell) for cell in (MOMENTUM, DYNABRO)] if command == "run" else None,
    )


@pytest.mark.slow
def test_no_room_for_a_new_database(clean: Content, place: Place) -> None:
    full(place, run(MOMENTUM), "file_size:8192")
    completed(place, run(MOMENTUM))
    check_whole(place, clean, [key_of(clean, MOMENTUM)])


@pytest.mark.slow
def test_no_room_for_a_checkpoint(place: Place, new_place: Any) -> None:
    other = new_place("clean one")
    completed(other, run(LARGE))
    full(place, run(LARGE), "file_size:400000")
    assert read(place.db, "SELECT status FROM runs") == [("interrupted",)]
    assert not [path for path in place.checkpoints() if path.suffix == ".part"]
    completed(place, run(LARGE))
    check_whole(place, content(other.db))
