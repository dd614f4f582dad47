"""``dynabro sweep --rerun`` and ``--rerun-changed``: which results are made again, also by a
command that was killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from dynabro_cli.core.registration import digests
from dynabro_cli.experiment import comparison
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.store.open.engine import open_for_writing
from tests.runs.executors.made_runs import Log, execute_all, quadratic
from tests.runs.store.made import change, read

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
SEEDS = range(4)
OTHER = json.dumps({"aggregators/cwmed": "0" * digests.DIGITS, "engine": "0" * digests.DIGITS})
ENGINE = json.dumps(
    {"aggregators/cwmed": digests.at_hand("aggregators/cwmed"), "engine": "0" * digests.DIGITS}
)
KILLED = """
import sys
from tests.runs.executors.test_reruns import sweep
sweep(sys.argv[1], rerun=sys.argv[2])
"""


def sweep(
    path: Path | str, worker: str = "tests.runs.executors.faulty:serve", **options: Any
) -> list[str]:
    """Make the runs, one after another; return what became of each."""
    engine: Engine = open_for_writing(str(path))
    runs: list[Run] = [quadratic(seed) for seed in SEEDS]
    outcomes = execute_all(
        runs, engine, Options(jobs=1, sweep="s", **options), Log(), worker=worker
    )
    engine.dispose()
    return [outcome.status for outcome in outcomes]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Notes of the workers; the file beside them says what goes wrong."""
    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setenv("FAULTS", str(folder))
    return folder / "notes"


@pytest.fixture
def path(tmp_path: Path, notes: Path) -> Path:
    """A database with a result of each run."""
    path = tmp_path / "results.db"
    assert sweep(path) == ["finished"] * 4
    notes.unlink()
    return path


def begun(notes: Path) -> list[int]:
    """The seeds of the runs that workers have begun, in order, since this was asked last."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    notes.unlink(missing_ok=True)
    return [int(line.removeprefix("begun ")) for line in lines if line.startswith("begun ")]


def pending(path: Path) -> int | None:
    """Up to which run the last sweep was to make all again, and has not made them."""
    number: int | None = read(path, "SELECT rerun_after FROM sweeps ORDER BY id DESC LIMIT 1")[0][0]
    return number


def test_all_are_made_again_and_take_the_place_of_what_was(path: Path, notes: Path) -> None:
    keys = read(path, "SELECT run_key FROM runs ORDER BY id")
    assert sweep(path) == ["stored"] * 4
    assert begun(notes) == []
    assert sweep(path, rerun="all") == ["finished"] * 4
    assert begun(notes) == [0, 1, 2, 3]
    assert read(path, "SELECT run_key FROM runs ORDER BY id") == keys
    assert read(path, "SELECT id FROM runs") == [(5,), (6,), (7,), (8,)]
    assert pending(path) is None
    assert sweep(path, rerun="all") == ["finished"] * 4  # another
    assert begun(notes) == [0, 1, 2, 3]
    assert read(path, "SELECT stored_before FROM sweeps") == [(0,), (4,), (0,), (0,)]


@pytest.mark.parametrize(
    "place",
    [
        "after-commit:2",
        *(pytest.param(other, marks=pytest.mark.slow) for other in ("before-finish:3", "claim:3")),
    ],
)
def test_a_rerun_that_is_killed_is_gone_on_with(place: str, path: Path, notes: Path) -> None:
    environment = os.environ | {"DYNABRO_FAILPOINT": f"{place}=KILL"}
    command = [sys.executable, "-c", KILLED, str(path), "all"]
    killed = subprocess.run(command, env=environment, cwd=ROOT, check=False, capture_output=True)
    assert killed.returncode == -9
    done = [
        seed
        for seed, number in read(path, "SELECT seed, id FROM runs WHERE status = 'finished'")
        if number > 4
    ]
    assert 0 < len(done) < 4
    # results stay till then
    assert read(path, "SELECT COUNT(*) FROM runs WHERE status = 'finished'") == [(4,)]
    assert pending(path) == 4
    begun(notes)

    assert sweep(path, rerun="all") == ["stored" if seed in done else "finished" for seed in SEEDS]
    assert begun(notes) == [seed for seed in SEEDS if seed not in done]
    assert read(
        path, "SELECT MIN(id) > 4, COUNT(*), COUNT(DISTINCT seed), MIN(status) FROM runs"
    ) == [(1, 4, 4, "finished")]
    assert pending(path) is None


def test_a_rerun_that_stops_at_a_failure_is_gone_on_with(path: Path, notes: Path) -> None:
    (notes.parent / "1").write_text("middle raise")
    assert sweep(path, rerun="all", fail_fast=True) == [
        "finished",
        "failed",
        "interrupted",
        "interrupted",
    ]
    assert pending(path) == 4
    assert read(path, "SELECT status FROM runs WHERE seed = 1 ORDER BY id") == [
        ("finished",),
        ("failed",),
    ]
    begun(notes)
    assert sweep(path, rerun="all") == ["stored", "failed", "finished", "finished"]
    assert begun(notes) == [2, 3]  # what has failed again is tried again when that is asked for
    assert pending(path) is None
    assert read(path, "SELECT stored_before FROM sweeps ORDER BY id DESC LIMIT 1") == [(2,)]


def test_what_fails_in_a_rerun_is_retried_if_that_is_asked_for(path: Path, notes: Path) -> None:
    (notes.parent / "1").write_text("start raise")
    assert sweep(path, rerun="all", fail_fast=True) == [
        "finished",
        "failed",
        "interrupted",
        "interrupted",
    ]
    (notes.parent / "1").unlink()
    assert sweep(path, rerun="all", retry_failed=True) == [
        "stored",
        "finished",
        "finished",
        "finished",
    ]
    assert read(path, "SELECT DISTINCT status FROM runs") == [("finished",)]
    assert read(path, "SELECT COUNT(*) FROM runs") == [(4,)]


def test_another_sweep_between_ends_a_rerun(path: Path, notes: Path) -> None:
    (notes.parent / "1").write_text("middle raise")
    sweep(path, rerun="all", fail_fast=True)
    (notes.parent / "1").unlink()
    assert sweep(path, retry_failed=True) == ["stored"] * 4
    begun(notes)
    assert sweep(path, rerun="all") == ["finished"] * 4
    assert begun(notes) == [0, 1, 2, 3]


def test_what_another_process_has_made_again_meanwhile_is_not_made_again(
    path: Path, notes: Path
) -> None:
    assert sweep(path, rerun="all") == ["finished"] * 4
    # the other one's, at work
    change(path, "UPDATE sweeps SET rerun_after = 4, status = 'running' WHERE id = 2")
    begun(notes)
    assert sweep(path, rerun="all") == ["stored"] * 4
    assert begun(notes) == []


def test_those_of_which_a_component_has_changed_are_made_again(path: Path, notes: Path) -> None:
    change(path, "UPDATE runs SET code_digests = ? WHERE seed IN (1, 2)", OTHER)
    change(path, "UPDATE runs SET code_digests = ? WHERE seed = 3", ENGINE)
    assert sweep(path) == ["stored"] * 4
    assert sweep(path, rerun="changed") == ["stored", "finished", "finished", "stored"]
    assert begun(notes) == [1, 2]
    assert read(path, "SELECT stored_before FROM sweeps ORDER BY id DESC LIMIT 1") == [(2,)]
    assert sweep(path, rerun="changed") == ["stored"] * 4
    assert begun(notes) == []


def test_what_has_failed_with_other_code_is_tried_again(path: Path, notes: Path) -> None:
    change(path, "UPDATE runs SET status = 'failed', error = 'bang' WHERE seed IN (0, 1)")
    change(path, "UPDATE runs SET code_digests = ? WHERE seed = 1", OTHER)
    assert sweep(path, rerun="changed") == ["failed", "finished", "stored", "stored"]
    assert begun(notes) == [1]


@pytest.mark.slow
def test_real_runs_say_what_made_them(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    worker = "dynabro_cli.runs.executors.worker:serve"
    assert sweep(path, worker) == ["finished"] * 4
    ((text,),) = read(path, "SELECT DISTINCT code_digests FROM runs")
    assert comparison.changed(text) == ()
    assert "aggregators/cwmed" in json.loads(text)
    change(path, "UPDATE runs SET code_digests = ? WHERE seed = 1", OTHER)
    assert sweep(path, worker, rerun="changed") == ["stored", "finished", "stored", "stored"]
    assert read(path, "SELECT DISTINCT code_digests FROM runs") == [(text,)]
