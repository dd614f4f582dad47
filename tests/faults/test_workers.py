"""Real runs whose worker processes go wrong in their middle: the others finish, and what failed can
be completed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

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
    sweep,
)
from tests.faults.test_kill import no_process_of

FAULTS = {
    (MOMENTUM["task"], 0): ("segfault", "its process was killed by SIGSEGV"),
    (MOMENTUM["task"], 1): ("exit", "its process exited with code 0"),
    (MOMENTUM["task"], 2): (
        "kill",
        "its process was killed by SIGKILL, most likely because memory ran out",
    ),
    (DYNABRO["task"], 0): ("memory", "RuntimeError: "),
    (DYNABRO["task"], 1): ("raise", "ValueError: bang"),
}


def faulty_sweep(place: Place, faults: dict[tuple[object, int], str], *more: str) -> Ended:
    """Make the sweep with workers that go wrong."""
    folder: Path = place.folder / "faults"
    folder.mkdir(exist_ok=True)
    for (task, seed), fault in faults.items():
        (folder / f"{task} {seed}").write_text(fault)
    return place.do(
        *sweep(place, *more),
        module="tests.faults.prepared",
        PREPARE="workers:faulty",
        FAULTS=str(folder),
    )


@pytest.mark.slow
def test_what_fails_leaves_the_others_alone_and_is_completed_by_retry_failed(
    clean: Content, place: Place
) -> None:
    ended = faulty_sweep(place, {run: fault for run, (fault, _) in FAULTS.items()})
    assert ended.code == 3, ended
    found = {
        (task, seed): (status, error)
        for task, seed, status, error in read(
            place.db, "SELECT task, seed, status, error FROM runs"
        )
    }
    assert found.pop((DYNABRO["task"], 2)) == ("finished", None)
    assert {run: status for run, (status, _) in found.items()} == dict.fromkeys(FAULTS, "failed")
    for run, (_, reason) in FAULTS.items():
        assert reason in found[run][1]
        assert reason in ended.out
    check_part(place, clean)
    assert "Fatal Python error: Segmentation fault" in place.logs()

    again = place.do(*sweep(place, jobs=1))
    assert again.code == 3  # nothing is tried again without being asked for
    assert place.logs().count("resuming after round") == 0
    last = place.do(*sweep(place, "--retry-failed"))
    assert last.code == 0, last
    assert place.logs().count("resuming after round") == len(FAULTS)
    check_whole(place, clean)
    assert place.checkpoints() == []


@pytest.mark.slow
def test_a_process_that_dies_before_it_goes_on_takes_nothing_with_it(
    clean: Content, place: Place
) -> None:
    words = sweep(place, "--set", "seeds=0..0")
    ended = place.do(*words, DYNABRO_FAILPOINT="after-commit:2=KILL")
    assert ended.code == -signal.SIGKILL, ended
    before = read(place.db, "SELECT run_id, round FROM rounds ORDER BY run_id, round")
    (place.folder / "faults").mkdir()
    (place.folder / "faults" / "early").touch()
    ended = faulty_sweep(place, {}, "--set", "seeds=0..0")
    assert ended.code == 3, ended
    assert read(place.db, "SELECT run_id, round FROM rounds ORDER BY run_id, round") == before
    assert {status for (status,) in read(place.db, "SELECT status FROM runs")} == {"failed"}
    last = place.do(*words, "--retry-failed")
    assert last.code == 0, last
    assert "resuming after round" in place.logs()
    check_whole(place, clean, [key_of(clean, cell) for cell in (MOMENTUM, DYNABRO)])


@pytest.mark.slow
def test_a_process_that_dies_once_is_replaced_and_the_run_goes_on_from_its_checkpoint(
    clean: Content, place: Place
) -> None:
    faults = {
        (MOMENTUM["task"], 0): "segfault",
        (MOMENTUM["task"], 1): "exit",
        (DYNABRO["task"], 2): "kill",
    }
    ended = faulty_sweep(place, faults, "--max-retries", "1")
    assert ended.code == 0, ended
    assert os.listdir(place.folder / "faults") == []
    assert place.logs().count("resuming after round") == 3
    check_whole(place, clean)


@pytest.mark.slow
def test_a_run_that_hangs(clean: Content, place: Place) -> None:
    ended = faulty_sweep(place, {(MOMENTUM["task"], 0): "hang"}, "--timeout", "20")
    assert ended.code == 3, ended
    errors = read(place.db, "SELECT task, seed, error FROM runs WHERE status <> 'finished'")
    assert errors == [(MOMENTUM["task"], 0, "timeout: it took longer than 20 s")]
    no_process_of(place)
    check_part(place, clean)
    assert place.do(*sweep(place, "--retry-failed")).code == 0
    check_whole(place, clean)
    assert (
        "resuming after round"
        in (place.folder / "results.db.d" / "logs" / f"{key_of(clean, MOMENTUM)}.log").read_text()
    )
