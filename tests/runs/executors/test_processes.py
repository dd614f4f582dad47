"""Many runs in worker processes: the numbers, and what becomes of runs whose processes go wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import Engine
from sqlalchemy import event as happenings

from dynabro_cli.core.errors import (
    InterruptedRunError,
    PreemptedError,
    RunError,
    SpecError,
    StorageError,
)
from dynabro_cli.core.events import Evaluated, Event
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.runs.executors import ledger, placement, sweep
from dynabro_cli.runs.executors._api import Options, Outcome
from dynabro_cli.runs.executors.backends import local
from dynabro_cli.runs.executors.backends.local import pool
from dynabro_cli.runs.executors.backends.local.pool import Pool
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.recorder import Recorder
from tests.core.machine.fake_mps import Service
from tests.runs.executors.made_runs import Log, children, execute_all, quadratic
from tests.runs.store.made import change, read, silent, started, whole_run

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
FIRST = Path(__file__).parent / "first"
"""The folder of a file that Python executes before any other."""
TIMES = ("id", "started_at", "finished_at", "wall_seconds", "pid", "git_commit", "rows_digest")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


@pytest.fixture
def engine(path: Path) -> Engine:
    return open_for_writing(str(path))


class Faults:
    """The folder that says what goes wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def plan(self, seed: int, text: str) -> None:
        (self.folder / str(seed)).write_text(text)

    def clear(self) -> None:
        for file in self.folder.iterdir():
            file.unlink()

    def notes(self, word: str) -> list[str]:
        """Notes after ``word``, in order."""
        file = self.folder / "notes"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.removeprefix(word + " ") for line in lines if line.startswith(word + " ")]


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    faults = Faults(tmp_path / "faults")
    monkeypatch.setenv("FAULTS", str(faults.folder))
    return faults


@pytest.fixture(autouse=True)
def others() -> Iterator[set[int]]:
    """Processes that other tests have left, such as the service of an exporter; no test here leaves
    any.
    """
    before = set(children())
    yield before
    assert set(children()) <= before


def make_up(
    engine: Engine, runs: int | list[Run], log: Any = None, worker: str = "serve", **options: Any
) -> list[Outcome]:
    """Make runs, whose seeds count from 0, in processes of ``faulty``."""
    listed = [quadratic(seed) for seed in range(runs)] if isinstance(runs, int) else runs
    chosen = Options(**{"jobs": 1, "device": "cpu"} | options)
    return execute_all(
        listed, engine, chosen, log or Log(), worker=f"tests.runs.executors.faulty:{worker}"
    )


def statuses(outcomes: list[Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


def stored(path: Path) -> list[tuple[Any, ...]]:
    return read(path, "SELECT seed, status, rounds FROM runs ORDER BY seed")


def content(path: Path, seeds: str = "0, 1, 2, 3") -> list[list[tuple[Any, ...]]]:
    """Everything in a database but times and who wrote it, by run key."""
    columns = [row[1] for row in read(path, "PRAGMA table_info(runs)") if row[1] not in TIMES]
    where = f"WHERE seed IN ({seeds}) ORDER BY run_key"
    return [read(path, f"SELECT {', '.join(columns)} FROM runs {where}")] + [
        read(
            path,
            f"SELECT run_key, {table}.* FROM {table} JOIN runs ON runs.id = run_id {where}, "
            f"{table}.round",
        )
        for table in ("rounds", "evaluations")
    ]


def without_ids(tables: list[list[tuple[Any, ...]]]) -> list[list[tuple[Any, ...]]]:
    runs, *rest = tables
    return [runs, *([(row[0], *row[2:]) for row in rows] for rows in rest)]


# --- the numbers


def test_rows_are_those_of_runs_made_one_by_one_and_of_fresh_processes(
    engine: Engine, path: Path, tmp_path: Path
) -> None:
    digits = {
        "task": "digits",
        "model": "cnn-digits",
        "budget": 10,
        "eval_every": 5,
        "batch_size": 4,
    }
    runs = [
        resolve(RunSpec(**digits, method="dynabro", precision="bf16", seed=0)),
        resolve(
            RunSpec(
                **digits | {"model": "mlp:hidden=9"},
                method="momentum",
                aggregator="gm",
                attack="alie",
                seed=1,
            )
        ),
        quadratic(2, method="momentum"),
        resolve(RunSpec(**digits, method="dynabro", attack="ipm", seed=3)),
    ]
    log = Log()
    outcomes = execute_all(
        runs, engine, Options(jobs=1, device="cpu", threads=1, sweep="name"), log
    )
    assert outcomes == [Outcome(run, "finished", None) for run in runs]
    told = log.of(2)
    assert (told[:3], told[-3:]) == (
        ["started", "Started", "Evaluated"],
        ["Evaluated", "Finished", "finished"],
    )

    alone = tmp_path / "alone.db"  # the run that came after three others, now in a new process
    execute_all(
        runs[3:],
        open_for_writing(str(alone)),
        Options(jobs=1, device="cpu", threads=1, sweep="name"),
        Log(),
    )
    assert without_ids(content(alone)) == without_ids(content(path, "3"))

    here, threads = tmp_path / "here.db", torch.get_num_threads()
    try:
        execute_all(
            runs,
            open_for_writing(str(here)),
            Options(jobs=0, device="cpu", threads=1, sweep="name"),
            Log(),
        )
    finally:
        torch.set_num_threads(threads)
    assert without_ids(content(here)) == without_ids(content(path))
    assert len(content(path)[0]) == 4


# --- failures


def test_what_goes_wrong_in_a_run_is_its_own_failure(
    engine: Engine, path: Path, faults: Faults
) -> None:
    plans = {
        1: "middle raise",
        2: "start raise",
        3: "start refuse",
        4: "middle exit",
        5: "middle SIGSEGV",
        6: "start SIGKILL",
    }
    for seed, text in plans.items():
        faults.plan(seed, text)
    log = Log()
    outcomes = make_up(engine, 8, log, jobs=2)
    assert [(outcome.status, outcome.message) for outcome in outcomes] == [
        ("finished", None),
        ("failed", "ValueError: bang"),
        ("failed", "ValueError: bang"),
        ("failed", "no such data"),
        ("failed", "its process exited with code 0"),
        ("failed", "its process was killed by SIGSEGV"),
        ("failed", "its process was killed by SIGKILL, most likely because memory ran out"),
        ("finished", None),
    ]
    assert stored(path) == [
        (0, "finished", 20),
        (1, "failed", 10),
        (2, "failed", 0),  # (3 could not start, and is made when what it needs is there)
        (4, "failed", 10),
        (5, "failed", 10),
        (6, "failed", 0),
        (7, "finished", 20),
    ]
    errors = dict(read(path, "SELECT seed, error FROM runs WHERE error IS NOT NULL"))
    for seed in (1, 2):
        assert errors[seed].startswith("Traceback")
        assert errors[seed].endswith("ValueError: bang\n")
    assert errors[5] == "its process was killed by SIGSEGV"
    assert read(path, "SELECT DISTINCT pid FROM runs") == [(os.getpid(),)]
    assert log.slots == {0, 1}
    assert log.of(1)[-2:] == ["RoundsDone", "failed"]
    # an exception costs no process, a death costs one
    assert len(set(faults.notes("process"))) <= 2 + 3


def test_only_crashes_are_tried_again(engine: Engine, path: Path, faults: Faults) -> None:
    for seed, text in enumerate(["middle SIGKILL once", "middle exit", "middle raise"]):
        faults.plan(seed, text)
    outcomes = make_up(engine, 3, max_retries=2)
    assert [(outcome.status, outcome.message) for outcome in outcomes] == [
        ("finished", None),
        ("failed", "its process exited with code 0 (3 attempts)"),
        ("failed", "ValueError: bang"),
    ]
    assert [faults.notes("begun").count(str(seed)) for seed in range(3)] == [2, 3, 1]
    assert stored(path) == [(0, "finished", 20), (1, "failed", 10), (2, "failed", 10)]


def test_a_run_that_takes_too_long_fails_and_is_not_tried_again(
    engine: Engine, path: Path, faults: Faults
) -> None:
    faults.plan(0, "middle hang")
    faults.plan(2, "start hang")
    outcomes = make_up(engine, 4, timeout=1.5, max_retries=3)
    late = ("failed", "timeout: it took longer than 1.5 s")
    assert [(outcome.status, outcome.message) for outcome in outcomes] == [
        late,
        ("finished", None),
    ] * 2
    assert stored(path) == [
        (0, "failed", 10),
        (1, "finished", 20),
        (2, "failed", 0),
        (3, "finished", 20),
    ]
    assert sorted(faults.notes("begun")) == ["0", "1", "2", "3"]


def test_fail_fast(engine: Engine, path: Path, faults: Faults) -> None:
    faults.plan(0, "middle hang")
    faults.plan(1, "middle gate")
    os.mkfifo(faults.folder / "gate")
    gate = os.open(faults.folder / "gate", os.O_RDWR)

    class OpensTheGate(Log):
        """Log that lets run 1 fail when run 0 is half-way."""

        def event(self, slot: int, run: Run, event: Event) -> None:
            super().event(slot, run, event)
            if self.of(0)[-1:] == ["RoundsDone"]:
                os.write(gate, b"!")

    try:
        outcomes = make_up(engine, 4, OpensTheGate(), jobs=2, fail_fast=True)
    finally:
        os.close(gate)
    assert statuses(outcomes) == ["interrupted", "failed", "interrupted", "interrupted"]
    assert stored(path) == [(0, "interrupted", 10), (1, "failed", 10)]


def test_a_process_that_cannot_start_says_why(
    engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    why = r"the last process exited with code 1: ImportError: libgiant.so: failed to map.*t$"
    with pytest.raises(RunError, match=why):
        make_up(engine, 2, worker="cannot_import")
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("worker", ["die_at_once", "die_when_ready", "die_when_asked"])
def test_processes_that_cannot_begin_are_an_error(worker: str, engine: Engine, path: Path) -> None:
    with pytest.raises(
        RunError, match=r"3 starts of a process in a row .* the last process exited with code 3"
    ):
        make_up(engine, 5, worker=worker, jobs=2)
    assert stored(path) == []


def test_a_process_that_closes_its_pipe_and_lives_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "GRACE", 0.01)
    with pytest.raises(RunError, match="the last process was killed by SIGKILL"):
        make_up(engine, 1, worker="fall_silent")


def test_a_process_that_dies_in_the_middle_of_a_message(
    engine: Engine, path: Path, faults: Faults
) -> None:
    (outcome,) = make_up(engine, 1, worker="die_while_sending")
    assert (outcome.status, outcome.message) == ("failed", "its process exited with code 1")
    assert stored(path) == [(0, "failed", 20)]


def test_a_process_that_dies_between_runs_is_replaced_in_silence(
    engine: Engine, path: Path, faults: Faults
) -> None:
    assert statuses(make_up(engine, 4, worker="serve_once")) == ["finished"] * 4
    assert len(set(faults.notes("process"))) == len(faults.notes("begun")) == 4


def test_processes_that_die_between_runs_at_the_same_time_are_no_false_starts(
    engine: Engine, faults: Faults
) -> None:
    assert statuses(make_up(engine, 8, worker="serve_once", jobs=4)) == ["finished"] * 8


def test_an_exception_on_a_gpu_costs_the_process(engine: Engine, faults: Faults) -> None:
    faults.plan(1, "middle raise")
    faults.plan(3, "middle refuse")  # raised on purpose, and harmless
    outcomes = make_up(engine, 5, worker="serve_on_gpu")
    assert statuses(outcomes) == ["finished", "failed", "finished", "failed", "finished"]
    first, second, third, fourth, fifth = (note.split()[0] for note in faults.notes("process"))
    assert first == second != third == fourth == fifth


@pytest.mark.parametrize("end", ["", "SIGINT", "SIGTERM", "error"])
def test_runs_on_a_gpu_have_a_service_of_their_own_until_the_end(
    end: str, engine: Engine, faults: Faults, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run 0 dies with the service; the others use it until the end. Quadratics stand for other
    models here.
    """
    monkeypatch.setattr(placement, "devices_of", lambda _: (["cuda:0"], []))
    monkeypatch.setattr(placement, "gpu_memory", lambda _: 24e9)
    monkeypatch.setattr(placement, "cores", lambda: 4)
    monkeypatch.setattr("dynabro_cli.simulation.placing.takes_gpu", lambda *_: True)
    faults.plan(0, "middle SIGKILL once")
    seen: list[list[Path]] = []

    class Ends(Log):
        """Log that ends everything in run 3."""

        def event(self, slot: int, run: Run, event: Event) -> None:
            super().event(slot, run, event)
            seen.append(service.running())
            if run.spec.seed == 3 and end == "error":
                raise KeyError("bang")
            if run.spec.seed == 3 and end:
                os.kill(os.getpid(), signal.Signals[end])

    errors = {"SIGINT": InterruptedRunError, "SIGTERM": PreemptedError, "error": KeyError}
    outcomes: list[Outcome] = []
    with pytest.raises(errors[end]) if end else contextlib.nullcontext():
        outcomes = make_up(engine, 4, Ends(), jobs=None, device="auto")
    (folder,) = seen[0]
    assert service.running() == []
    assert not folder.exists()
    assert len(service.started()) == 1
    if not end:
        assert statuses(outcomes) == ["finished"] * 4
        assert faults.notes("service of 0") == [str(folder), f"{folder}/none"]
        assert set(faults.notes("service of 2")) == {str(folder)}


# --- what is stored already, and what others do


def test_what_is_stored_is_not_made_again(engine: Engine, path: Path, faults: Faults) -> None:
    faults.plan(1, "middle raise")
    faults.plan(2, "middle hang")
    make_up(engine, 2)
    change(path, "UPDATE runs SET status = 'diverged' WHERE seed = 0")
    faults.clear()

    log = Log()
    # no process is needed to see that
    first, second = make_up(engine, 2, log, worker="die_at_once")
    assert (first.status, second.status) == ("stored", "failed")
    assert "ValueError: bang" in (second.message or "")
    assert log.lines == [(0, "stored"), (1, "failed")]

    assert statuses(make_up(engine, 3, retry_failed=True)) == ["stored", "finished", "finished"]
    assert faults.notes("begun") == ["1", "2"]
    assert statuses(make_up(engine, 3, retry_failed=True)) == ["stored"] * 3


def test_what_another_has_or_is_faster_with_is_waited_for(
    engine: Engine, path: Path, faults: Faults
) -> None:
    rivals = [Recorder(engine) for _ in range(3)]

    class Rival(Log):
        """Log that takes runs between their start and their claim here."""

        def started(self, slot: int, run: Run) -> None:
            super().started(slot, run)
            if run.spec.seed == 1 and not self.waited:
                rivals[1].record(started(run.key, seed=1))
            if run.spec.seed == 2:
                for event in whole_run(3, key=run.key, seed=2):
                    rivals[2].record(event)

        def waiting(self, runs: int) -> None:
            super().waiting(runs)
            if runs == 2:
                assert stored(path) == [
                    (0, "running", 0),
                    (1, "running", 0),
                    (2, "finished", 3),
                    (3, "finished", 20),
                ]
                for event in whole_run(3, seed=0)[1:]:
                    rivals[0].record(event)
            elif runs == 1:  # the other one is gone
                silent(path, rivals[1])

    rivals[0].record(started(quadratic(0).key, seed=0))
    log = Rival()
    assert statuses(make_up(engine, 4, log)) == ["stored", "finished", "stored", "finished"]
    assert log.waited[:1] == [2]
    assert stored(path) == [
        (0, "finished", 3),
        (1, "finished", 20),
        (2, "finished", 3),
        (3, "finished", 20),
    ]
    assert faults.notes("claimed") == ["3", "1"]  # nothing is made that is another's


@pytest.mark.usefixtures("faults")
def test_what_another_has_is_not_looked_at_while_all_are_busy(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the wait for messages would be none, again and again, from the first second on."""
    rival = Recorder(engine)

    class Rival(Log):
        def waiting(self, runs: int) -> None:
            for event in whole_run(3, seed=0)[1:]:
                rival.record(event)

    seen: list[tuple[bool, float | None]] = []
    wait = Pool.wait

    def noted(self: Pool, patience: float | None) -> None:
        seen.append((self.capacity == len(self._workers), patience))
        wait(self, patience)

    monkeypatch.setattr(Pool, "wait", noted)
    monkeypatch.setattr(ledger, "REVISIT_SECONDS", 0.0)
    rival.record(started(quadratic(0).key, seed=0))
    assert statuses(make_up(engine, 2, Rival())) == ["stored", "finished"]
    assert {patience for busy, patience in seen if busy} == {None}


def test_a_failure_does_not_take_what_is_anothers(
    engine: Engine, path: Path, faults: Faults
) -> None:
    rival = Recorder(engine)

    class Rival(Log):
        def started(self, slot: int, run: Run) -> None:
            rival.record(started(run.key, seed=0))

        def waiting(self, runs: int) -> None:
            assert stored(path) == [(0, "running", 0)]
            for event in whole_run(3, seed=0)[1:]:
                rival.record(event)

    faults.plan(0, "start raise")
    assert statuses(make_up(engine, 1, Rival())) == ["stored"]
    assert stored(path) == [(0, "finished", 3)]


# --- programs: two at once, Ctrl-C, and kill -9


@pytest.fixture
def program(path: Path, faults: Faults) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program in a new session, like a terminal."""
    programs = []

    def call(jobs: int, seeds: int, **environment: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            str(ROOT / "tests/runs/executors/program.py"),
            str(path),
            str(jobs),
            str(seeds),
        ]
        process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": f"{FIRST}:{ROOT}", "PRETEND": "Linux"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        programs.append(process)
        return process

    yield call
    for process in programs:
        process.kill()
        process.communicate()


def test_two_at_once_make_each_run_once(
    program: Callable[..., subprocess.Popen[str]], path: Path, faults: Faults
) -> None:
    both = [program(1, 15), program(1, 15)]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    first, second = (out.splitlines()[-1].split() for out, _ in answers)
    for ours, theirs in zip(first, second, strict=True):
        assert sorted([ours, theirs]) == ["finished", "stored"]
    assert sorted(faults.notes("claimed"), key=int) == [str(seed) for seed in range(15)]
    assert stored(path) == [(seed, "finished", 20) for seed in range(15)]
    assert read(path, "SELECT COUNT(*) FROM rounds") == [(15 * 20,)]


@pytest.mark.parametrize("early", ["", "1"])
def test_ctrl_c(
    early: str, program: Callable[..., subprocess.Popen[str]], path: Path, faults: Faults
) -> None:
    faults.plan(0, "middle hang")
    faults.plan(1, "middle hang")
    process = program(2, 3, EARLY=early)
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)  # which waits for all that hold its standard error
    assert (process.returncode, err) == (130, "")
    assert out == "interrupted; runs stored as interrupted: 2; the same command resumes from here\n"
    assert stored(path) == [(0, "interrupted", 10), (1, "interrupted", 10)]
    assert all("SIG_IGN" in note for note in faults.notes("process"))


@pytest.fixture
def python_handles_ctrl_c() -> Iterator[None]:
    """A test run in the background may have Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_ctrl_c")
@pytest.mark.parametrize(
    ("when", "runs"),
    [
        ("stored", [(1, "finished"), (2, "finished")]),
        ("Started", [(1, "interrupted")]),
        ("finished", [(1, "finished")]),
    ],
)
def test_ctrl_c_waits_until_nothing_is_half_done(
    when: str, runs: list[Any], engine: Engine, path: Path, faults: Faults
) -> None:
    class CtrlC(Log):
        def event(self, slot: int, run: Run, event: Event) -> None:
            super().event(slot, run, event)
            self.interrupt()

        def ended(self, slot: int, outcome: Outcome) -> None:
            super().ended(slot, outcome)
            self.interrupt()

        def interrupt(self) -> None:
            if self.lines[-1][1] == when:
                signal.raise_signal(signal.SIGINT)

    make_up(engine, 3 if when == "stored" else 1)
    if when == "Started":
        faults.plan(1, "middle hang")
    log = CtrlC()
    with pytest.raises(
        InterruptedRunError, match=f"stored as interrupted: {int(when == 'Started')};"
    ):
        make_up(engine, 3, log)
    assert [what for _, what in log.lines].count(when) == 1
    assert read(path, "SELECT seed, status FROM runs ORDER BY seed") == [(0, "finished"), *runs]


@pytest.mark.parametrize("system", ["Linux", "Darwin"])
def test_no_process_outlives_a_killed_parent(
    system: str,
    program: Callable[..., subprocess.Popen[str]],
    engine: Engine,
    path: Path,
    faults: Faults,
) -> None:
    faults.plan(0, "middle hang")
    faults.plan(1, "middle hang")
    process = program(2, 3, PRETEND=system)
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    workers = [int(note.split()[0]) for note in faults.notes("process")]
    assert len(workers) == 2
    process.kill()
    _, err = process.communicate(timeout=60)  # which waits for all that hold its standard error
    assert (process.returncode, err) == (-signal.SIGKILL, "")
    faults.clear()
    assert statuses(make_up(engine, 3)) == ["finished"] * 3
    assert stored(path) == [(seed, "finished", 20) for seed in range(3)]
    assert read(path, "SELECT COUNT(*) FROM rounds") == [(3 * 20,)]


# --- errors that end everything


def test_a_full_disk_ends_everything_and_what_was_stored_is_intact(
    engine: Engine, path: Path, faults: Faults
) -> None:
    faults.plan(2, "middle hang")
    assert statuses(make_up(engine, 1)) == ["finished"]

    @happenings.listens_for(engine, "connect")
    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(
            f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}"
        )

    with pytest.raises(StorageError, match="make room"):
        make_up(
            engine,
            [quadratic(seed, method=f"momentum:beta=0.{'9' * 9}") for seed in range(40)],
            jobs=2,
        )
    happenings.remove(engine, "connect", limit)
    assert read(path, "PRAGMA integrity_check") == [("ok",)]
    assert stored(path)[0] == (0, "finished", 20)


def test_a_listener_that_fails_ends_everything(engine: Engine, path: Path, faults: Faults) -> None:
    os.mkfifo(faults.folder / "gate")
    gate = os.open(faults.folder / "gate", os.O_RDWR)

    class Broken(Log):
        """Fails at the first evaluation, when the worker has sent ten rounds more."""

        def event(self, slot: int, run: Run, event: Event) -> None:
            super().event(slot, run, event)
            if isinstance(event, Evaluated):
                os.read(gate, 1)
                raise KeyError("bang")

    faults.plan(0, "middle tell")
    log = Broken()
    try:
        with pytest.raises(KeyError, match="bang"):
            make_up(engine, 2, log)
    finally:
        os.close(gate)
    assert stored(path) == [(0, "interrupted", 10)]  # what was on its way is stored, too
    assert log.lines == [(0, "started"), (0, "Started"), (0, "Evaluated")]


# --- options


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"jobs": -1}, "jobs=-1 is not legal; it must be at least 0"),
        ({"threads": 0}, "threads=0 is not legal"),
        ({"threads": 100_000}, "threads=100000 is not legal; it must be at most 1024"),
        ({"max_retries": -1}, "max_retries=-1 is not legal; it must be at least 0"),
        ({"timeout": 0.0}, "timeout=0.0 is not legal"),
        ({"timeout": float("nan")}, "timeout=nan is not legal"),
        ({"compile": "maybe"}, "compile=maybe is not legal"),
        ({"device": "gpu"}, "device=gpu is not here"),
    ],
)
def test_options_are_checked_before_anything_begins(
    options: dict[str, Any], problem: str, engine: Engine
) -> None:
    with pytest.raises(SpecError, match=problem):
        make_up(engine, 1, worker="die_at_once", **options)


def test_a_precision_that_the_device_has_not_is_told_before_anything_begins(engine: Engine) -> None:
    with pytest.raises(SpecError, match="precision=tf32"):
        make_up(engine, [resolve(RunSpec(precision="tf32"))], worker="die_at_once")


@pytest.mark.parametrize(
    ("options", "processes_", "threads"),
    [
        ({"jobs": None}, 3, 1),
        ({"jobs": 2}, 2, 3),
        ({"jobs": 9}, 4, 1),
        ({"jobs": 1, "threads": 5}, 1, 5),
    ],
)
def test_processes_share_the_cores(
    options: dict[str, Any],
    processes_: int,
    threads: int,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (local, placement):
        monkeypatch.setattr(module, "cores", lambda: 7 if options["jobs"] == 2 else 3)
    seen: list[tuple[int, Options]] = []

    class Scheduler:
        def __init__(
            self, runs: object, recorders: list[Recorder], decided: Options, *_: object
        ) -> None:
            seen.append((len(recorders), decided))

        def run(self) -> list[Outcome]:
            return []

    monkeypatch.setattr(sweep, "Scheduler", Scheduler)
    make_up(engine, 4, **options)
    ((count, decided),) = seen
    assert (count, decided.threads, decided.device) == (processes_, threads, "cpu")


def test_no_runs(engine: Engine) -> None:
    assert make_up(engine, 0, worker="die_at_once") == []


def test_processes_beyond_the_capacity_end(others: set[int]) -> None:
    with closing(Pool("tests.runs.executors.faulty:serve")) as workers:
        for place in range(3):
            workers.start(place)
        workers.resize(1)
        (left,) = set(children()) - others
        assert workers.capacity == 1
        assert left == workers._workers[0].pid
        workers.resize(2)
        assert workers.capacity == 2
