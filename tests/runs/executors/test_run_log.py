"""The log of a run: what it says, that all that is printed gets into it, and that a run goes on
where it cannot be written.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dynabro_cli.core import events
from dynabro_cli.core.events import Totals
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors import run_log, worker
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.executors.run_log import RunLog
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.side_files import SideFiles
from dynabro_cli.simulation import setup
from tests.runs.executors.made_runs import Log, execute_all, quadratic
from tests.runs.store.made import KEY, diverged, evaluated, finished, read, rounds, started

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "
TALKATIVE = "tests.runs.executors.talkative:serve"
PRINTED = [
    "from Python",
    "from native code",
    "from native code's errors \x1b[2J\ufffd",
    "a surrogate \\ud800",
    "no end of the line",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.log"


def told(path: Path) -> list[str]:
    """The lines of a log without their times; every line has one, or belongs to the one before."""
    lines = path.read_text().splitlines()
    assert all(re.match(f"{TIME}\\S|    ", line) for line in lines), lines
    return [re.sub(f"^{TIME}", "", line) for line in lines]


def sweep(folder: Path, *runs: Run, **options: object) -> tuple[list[str], list[str]]:
    """Make runs that print in a worker process; return what became of each, and each one's log."""
    engine = open_for_writing(str(folder / "results.db"))
    how = Options(jobs=1, device="cpu", **options)  # type: ignore[arg-type]
    outcomes = execute_all(runs, engine, how, Log(), worker=TALKATIVE)
    files = SideFiles.of(engine.url)
    logs = [files.log(run.key) for run in runs]
    return [outcome.status for outcome in outcomes], [
        log.read_text(errors="replace") if log.is_file() else "" for log in logs
    ]


# --- what it says


def test_a_run_from_start_to_end(path: Path) -> None:
    log = RunLog(path)
    versions = '{"dynabro":"1.2","threads":3,"torch":"2.11","cuda":null,"gradients":{"a":1}}'
    log.event(started(versions=versions, device="cuda:0 H200", host="here"))
    for event in (
        evaluated(0),
        rounds(0, 9),
        events.Checkpointed(Totals(10, 12, 0, 0), b"x" * 2000),
        evaluated(10, None, 0.125),
    ):
        log.event(event)
    log.event(finished(10, 0.875))
    start, where, settings, programs, first, checkpoint, second, end = told(path)
    assert start == "started: digits, momentum:beta=0.99, cwtm, sf, periodic:K=20, seed 3"
    assert where == f"run {KEY} on cuda:0 H200 of here, stored by process {os.getpid()}, threads 3"
    assert settings.startswith(
        "model logistic, attack_entry gradient, clock round, workers 17, byzantine 8, budget 50, "
    )
    assert settings.endswith(
        "precision fp32, participation 1.0, data iid, validation 0.0, dimension 650"
    )
    assert programs == 'dynabro 1.2; torch 2.11; gradients {"a": 1}'
    assert first == "round 0, budget 0: accuracy 0.5, loss 0.5, train loss 0.5"
    assert checkpoint == "checkpoint after round 10, 2,000 bytes"
    assert second == "round 10, budget 10: gap 0.125"
    assert re.fullmatch(
        r"finished: accuracy 0.875, loss 0.125; 10 rounds, 10 gradient computations per "
        r"worker; \d+\.\d s",
        end,
    )


def test_a_run_that_goes_on(path: Path) -> None:
    RunLog(path).event(events.Started(KEY, started().record, Totals(7, 9, 0, 0)))
    assert told(path)[0].startswith("resuming after round 7 with budget 9 spent: digits, ")


def test_a_chain_of_pre_aggregators(path: Path) -> None:
    RunLog(path).event(started(pre_aggregators="nnm"))
    assert ", nnm+cwtm, " in told(path)[0]


def test_a_run_that_diverges(path: Path) -> None:
    RunLog(path).event(diverged(5))
    assert told(path)[0].startswith("diverged in round 4: accuracy 0.1, loss nan; 5 rounds")


def test_a_failure_keeps_its_traceback_and_stays_one_entry(path: Path) -> None:
    log = RunLog(path)
    log.failed('Traceback (most recent call last):\n  File "a.py"\nValueError: \ud800\n')
    log.interrupted()
    first, *rest, last = told(path)
    assert re.fullmatch(r"failed after \d+\.\d s: Traceback \(most recent call last\):", first)
    assert rest == ['      File "a.py"', "    ValueError: \\ud800"]
    assert last.startswith("interrupted after ")


def test_another_attempt_is_added(path: Path) -> None:
    for _ in range(2):
        RunLog(path).write("once more")
    assert told(path) == ["once more"] * 2


# --- who writes it


def test_a_run_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_for_writing(str(tmp_path / "results.db"))

    def log_of(seed: int) -> list[str]:
        execute_all([quadratic(seed)], engine, Options(jobs=0, device="cpu"), Log())
        return told(SideFiles.of(engine.url).log(quadratic(seed).key))

    first, *_, last = log_of(0)
    assert first.startswith("started: quadratic, ")
    assert last.startswith("finished: gap ")

    def broken(*_: object, **__: object) -> object:
        yield started(quadratic(1).key)
        raise ValueError("bang")

    monkeypatch.setattr(setup, "simulate_run", broken)
    lines = log_of(1)
    assert any("Traceback (most recent call last)" in line for line in lines)
    assert lines[-1] == "    ValueError: bang"


def test_an_interrupted_run_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> object:
        yield started(quadratic(1).key)
        raise KeyboardInterrupt

    monkeypatch.setattr(setup, "simulate_run", stopped)
    engine = open_for_writing(str(tmp_path / "results.db"))
    with pytest.raises(KeyboardInterrupt):
        execute_all([quadratic(1)], engine, Options(jobs=0, device="cpu"), Log())
    assert told(SideFiles.of(engine.url).log(quadratic(1).key))[-1].startswith("interrupted after ")


# --- what is printed


@pytest.mark.thorough
def test_what_a_worker_prints_is_in_its_runs_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    statuses, (log, other) = sweep(tmp_path, quadratic(0), quadratic(2))
    assert statuses == ["finished"] * 2
    lines = log.splitlines()
    for text in PRINTED[:-1]:
        assert text in lines
        assert other.splitlines().count(text) == 1
    assert PRINTED[-1] in log
    assert any("UserWarning: from a warning" in line for line in lines)
    assert re.match(f"{TIME}begun by process \\d+$", lines[0])
    assert re.match(f"{TIME}started: quadratic, ", lines[1])
    assert any(re.search(f"{TIME}finished: ", line) for line in lines)
    assert "from" not in "".join(capfd.readouterr())


@pytest.mark.thorough
def test_a_crash_of_native_code_leaves_its_trace(tmp_path: Path) -> None:
    statuses, (log, other) = sweep(tmp_path, quadratic(1), quadratic(0), max_retries=1)
    assert statuses == ["failed", "finished"]
    assert log.count("Fatal Python error: Segmentation fault") == 2
    assert 'talkative.py", line ' in log
    assert log.count("from Python\n") == 2
    assert "its process was killed by SIGSEGV; the run is retried\n" in log
    assert re.search(r"failed after .* s: its process was killed by SIGSEGV \(2 attempts\)\n", log)
    assert "Fatal" not in other


# --- where it cannot be written


def full(_: Path) -> int:
    """Open a log on a disk without room."""
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("what", ["a folder", "no folder", "a full disk", "a pipe"])
def test_a_log_that_cannot_be_written_is_no_error(
    path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "a folder":
        path.mkdir()
    elif what == "no folder":
        path = path / "gone" / "run.log"
    elif what == "a pipe":
        os.mkfifo(path)
    else:
        monkeypatch.setattr(run_log, "open_log", full)
    log = RunLog(path)
    log.event(started())
    log.failed("bang")
    RunLog(None).event(started())


def test_what_is_printed_on_a_full_disk_is_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "open_log", full)
    with worker.printing_to(path):
        print("from Python", flush=True)


def test_a_log_that_is_a_link_to_another_file(path: Path) -> None:
    other = path.with_name("notes.txt")
    other.write_text("precious")
    path.symlink_to(other)
    RunLog(path).event(started())
    assert other.read_text() == "precious"


@pytest.mark.parametrize("what", ["a folder", pytest.param("a link", marks=pytest.mark.thorough)])
def test_a_worker_prints_to_a_log_that_cannot_be_written(
    tmp_path: Path, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for run in (quadratic(0), quadratic(2)):
        log = SideFiles.of(str(tmp_path / "results.db")).prepare_log(run.key)
        log.mkdir() if what == "a folder" else log.symlink_to("elsewhere")
    statuses, _ = sweep(tmp_path, quadratic(0), quadratic(2))
    assert statuses == ["finished"] * 2
    assert (
        read(tmp_path / "results.db", "SELECT status, error FROM runs") == [("finished", None)] * 2
    )
    assert "from" not in "".join(capfd.readouterr())


@pytest.mark.thorough
def test_runs_without_a_folder_for_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNABRO_STATE", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    statuses, _ = sweep(tmp_path, quadratic(0))
    assert statuses == ["finished"]


def test_a_log_that_cannot_be_written_any_more_is_told_once(tmp_path: Path) -> None:
    told: list[str] = []
    files = SideFiles(tmp_path / "state", told.append)
    logs = [RunLog.of(files, key) for key in ("ab" * 32, "cd" * 32)]
    for log in logs:
        log.write("begun")
        assert log.path is not None
        log.path.unlink()
        log.path.mkdir()  # as root may write everywhere else
    for log in logs:
        log.write("ended")
    (line,) = told
    assert line.startswith(
        f"{tmp_path}/state/logs cannot be written (Is a directory); runs continue without logs; "
    )


@pytest.mark.thorough
def test_printing_goes_where_it_went_before(path: Path) -> None:
    program = [sys.executable, "-m", "tests.runs.executors.talkative"]
    answer = subprocess.run(
        [*program, str(path), "0"], capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )
    assert (answer.stdout, answer.stderr) == (
        "Ready Begun Started RoundsDone Evaluated Finished\n",
        "after\n",
    )
    crash = subprocess.run(
        [*program, str(path), "1"], capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )
    assert (crash.returncode, crash.stdout, crash.stderr) == (-11, "", "")
    assert "Segmentation fault" in path.read_text(errors="replace")


def test_a_runs_log_is_in_its_folder_whatever_the_key(tmp_path: Path) -> None:
    assert SideFiles(tmp_path).log("../../key") == tmp_path / "logs" / "key.log"
