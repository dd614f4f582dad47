"""Many runs in a Ray cluster: a real one, of two nodes on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import Engine

from dynabro_cli.core import events
from dynabro_cli.core.errors import DynabroError, NotFoundError, RunError, SpecError
from dynabro_cli.core.registration import plugins
from dynabro_cli.core.registration.digests import digests_of
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.runs.executors._api import Options, Outcome
from dynabro_cli.runs.executors.backends import ray as ray_cluster
from dynabro_cli.runs.executors.backends.ray.shares import Share
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.side_files import SideFiles
from tests.core.registration.test_own_components import ALL_KINDS, write_all
from tests.own import fresh
from tests.runs.executors.made_runs import Log, execute_all, quadratic
from tests.runs.store.made import change, read

try:
    ray = ray_cluster._import_ray()  # which silences Ray, as it must be before the first import
except SpecError:
    pytest.skip("Ray is not installed: pip install 'dynabro[ray]'", allow_module_level=True)
from ray.cluster_utils import Cluster

from dynabro_cli.runs.executors.backends.ray import node as ray_node

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
TIMES = ("started_at", "finished_at", "wall_seconds", "heartbeat_at", "heartbeat_clock")
WHOSE = ("id", "pid", "git_commit", "owner", "host", "rows_digest", *TIMES)
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}
SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_failure_threshold": 3,
}
"""That a node is gone is noticed after a second; a slow one still has Ray's usual ten seconds for
each answer.
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def client_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def cluster(client_port: int) -> Iterator[Any]:
    """Two nodes of one CPU each; the second says that it has a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # of the nodes, also of those that tests add
        head = NODE | {
            "include_dashboard": False,
            "ray_client_server_port": client_port,
            "_system_config": SOON,
        }
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**NODE, num_gpus=1)
        yield cluster
        cluster.shutdown()


@pytest.fixture(scope="module")
def connection(cluster: Any) -> Iterator[None]:
    """This process is connected, so that worker processes stay from one test to the next."""
    ray_cluster._connect(ray, cluster.address)
    yield
    ray.shutdown()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


@pytest.fixture
def engine(path: Path) -> Engine:
    return open_for_writing(str(path))


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    folder = tmp_path / "faults"
    folder.mkdir()
    return folder


def make(
    engine: Engine,
    runs: int | list[Run],
    faults: Path | None,
    log: Any = None,
    entry: str = "made_up",
    **options: Any,
) -> list[Outcome]:
    """Make runs, whose seeds count from 0, with an entry of ``ray_faults``."""
    listed = [quadratic(seed) for seed in range(runs)] if isinstance(runs, int) else runs
    chosen = Options(**{"executor": "ray", "device": "cpu", "data_dir": faults} | options)
    entry = entry if ":" in entry else f"tests.runs.executors.ray_faults:{entry}"
    return execute_all(
        listed,
        engine,
        chosen,
        log or Log(),
        opened=ray_cluster.opened(chosen, len(listed), entry=entry),
    )


def noted(faults: Path, word: str) -> list[str]:
    lines = (faults / "notes").read_text().splitlines()
    return [line.removeprefix(word + " ") for line in lines if line.startswith(word + " ")]


def content(path: Path) -> list[list[tuple[Any, ...]]]:
    """Everything in a database but times and who wrote it, by run key."""
    columns = [row[1] for row in read(path, "PRAGMA table_info(runs)") if row[1] not in WHOSE]
    tables = [read(path, f"SELECT {', '.join(columns)} FROM runs ORDER BY run_key")]
    for table in ("rounds", "evaluations"):
        columns = [
            row[1]
            for row in read(path, f"PRAGMA table_info({table})")
            if row[1] not in ("id", "run_id")
        ]
        shown = ", ".join(f"{table}.{name}" for name in columns)
        tables.append(
            read(
                path,
                f"SELECT run_key, {shown} FROM {table} JOIN runs ON runs.id = run_id ORDER BY "
                f"run_key, {table}.round",
            )
        )
    return tables


def made_here(path: Path, runs: list[Run]) -> list[list[tuple[Any, ...]]]:
    """The content of a database of the same runs, made one by one in this process."""
    threads = torch.get_num_threads()
    try:
        execute_all(
            runs,
            open_for_writing(str(path)),
            Options(jobs=0, device="cpu", threads=1, sweep="name"),
            Log(),
        )
    finally:
        torch.set_num_threads(threads)
    return content(path)


def log_of(engine: Engine, run: Run) -> str:
    return SideFiles.of(engine.url).log(run.key).read_text()


def stored(path: Path) -> list[tuple[Any, ...]]:
    return read(path, "SELECT seed, status, rounds FROM runs ORDER BY seed")


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def wait_for_the_end_of(processes: list[int]) -> None:
    """Wait for processes, given by descriptors, that need not be ours."""
    while processes:
        ended, _, _ = select.select(processes, [], [], 60)
        assert ended
        for process in ended:
            os.close(process)
            processes.remove(process)


DIGITS = {
    "task": "digits",
    "model": "logistic",
    "method": "momentum:beta=0.5",
    "budget": 40,
    "eval_every": 10,
}


# --- the numbers


@pytest.mark.usefixtures("connection")
def test_rows_are_those_of_runs_made_one_by_one(engine: Engine, path: Path, tmp_path: Path) -> None:
    runs = [resolve(RunSpec(**DIGITS, seed=seed)) for seed in range(2)]  # type: ignore[arg-type]
    runs += [quadratic(seed, method="momentum", budget=60) for seed in range(4)]
    log = Log()
    outcomes = make(engine, runs, None, log, ray_cluster.SIMULATION, sweep="name", threads=1)
    assert outcomes == [Outcome(run, "finished", None) for run in runs]
    assert content(path) == made_here(tmp_path / "here.db", runs)
    assert log.slots == {0, 1}
    told = log.of(3)
    assert (told[:2], told[-2:]) == (["started", "Started"], ["Finished", "finished"])
    assert [outcome.status for outcome in make(engine, runs, None, entry="broken")] == [
        "stored"
    ] * 6


@pytest.mark.usefixtures("connection")
def test_a_lost_node_costs_no_more_than_what_came_after_the_checkpoint(
    cluster: Any,
    engine: Engine,
    path: Path,
    faults: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    runs = [quadratic(seed, method="momentum", budget=60) for seed in range(2)]
    runs += [resolve(RunSpec(**DIGITS, seed=seed)) for seed in (2, 3)]  # type: ignore[arg-type]
    doomed = cluster.add_node(**NODE)
    (faults / "gate").touch()
    with (faults / "gate").open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)

        class Killer(Log):
            """Kills a node when a run waits, after its checkpoint, on each of the three."""

            def __init__(self) -> None:
                super().__init__()
                self.patient: set[str] = set()
                self.left: list[str] = []

            def event(self, slot: int, run: Run, event: events.Event) -> None:
                super().event(slot, run, event)
                if isinstance(event, events.Checkpointed) and run.key not in self.patient:
                    self.patient.add(run.key)
                    if len(self.patient) == 3:
                        orphans = [
                            os.pidfd_open(pid)
                            for pid in children(doomed.all_processes["raylet"][0].process.pid)
                        ]
                        cluster.remove_node(doomed, allow_graceful=False)
                        wait_for_the_end_of(orphans)  # which would go on for a moment
                        fcntl.flock(gate, fcntl.LOCK_UN)
                if (
                    isinstance(event, events.Started)
                    and event.resumed is not None
                    and event.resumed.rounds == 1
                ):
                    self.left.append(run.key)

        log = Killer()
        outcomes = make(
            engine,
            runs,
            faults,
            log,
            "patient",
            sweep="name",
            threads=1,
            jobs=3,
            checkpoint_every=1e-6,
        )
    assert [(outcome.status, outcome.message) for outcome in outcomes] == [("finished", None)] * 4
    assert content(path) == made_here(tmp_path / "here.db", runs)
    assert [
        log_of(engine, run).count("resuming after round 1") for run in runs if run.key in log.left
    ] == [1]
    assert len(log.left) == 1
    assert capfd.readouterr() == ("", "")  # Ray itself has much to say about it


# --- failures


@pytest.mark.usefixtures("connection")
def test_what_goes_wrong_in_a_run_is_its_own_failure(
    engine: Engine, path: Path, faults: Path
) -> None:
    plans = {
        1: "middle raise",
        2: "start refuse",
        3: "middle exit once",
        4: "middle SIGSEGV",
        5: "middle hang",
    }
    for seed, text in plans.items():
        (faults / str(seed)).write_text(text)
    outcomes = make(engine, 7, faults, timeout=5.0)
    assert [outcome.status for outcome in outcomes] == [
        "finished",
        "failed",
        "failed",
        "finished",
        "failed",
        "failed",
        "finished",
    ]
    messages = [outcome.message or "" for outcome in outcomes]
    assert messages[1] == "ValueError: bang"
    assert messages[2].startswith("no such data (on ")
    assert messages[4].startswith("its task was lost, because its process died")
    assert messages[4].endswith(" (4 attempts)")
    assert messages[5] == "timeout: it took longer than 5 s"
    assert read(path, "SELECT seed, status, rounds FROM runs WHERE seed <> 4 ORDER BY seed") == [
        (0, "finished", 20),
        (1, "failed", 10),  # (2 could not start, and is made when what it needs is there)
        (3, "finished", 20),
        (5, "failed", 10),
        (6, "finished", 20),
    ]
    ((status, rounds),) = read(path, "SELECT status, rounds FROM runs WHERE seed = 4")
    # the last events may die with the process
    assert (status, rounds in (0, 10)) == ("failed", True)
    assert [noted(faults, "begun").count(str(seed)) for seed in range(7)] == [1, 1, 1, 2, 4, 1, 1]
    assert "noise" in log_of(engine, quadratic(0))

    for seed in plans:
        (faults / str(seed)).unlink()
    again = make(engine, 7, faults)
    assert [outcome.status for outcome in again] == [
        "stored",
        "failed",
        "finished",
        "stored",
        "failed",
        "failed",
        "stored",
    ]
    again = make(engine, 7, faults, retry_failed=True)
    assert [outcome.status for outcome in again] == [
        "stored",
        "finished",
        "stored",
        "stored",
        "finished",
        "finished",
        "stored",
    ]


@pytest.mark.usefixtures("connection")
def test_fail_fast(engine: Engine, path: Path, faults: Path) -> None:
    (faults / "0").write_text("middle hang")
    (faults / "1").write_text("middle raise")
    outcomes = make(engine, 4, faults, fail_fast=True)
    assert [outcome.status for outcome in outcomes] == [
        "interrupted",
        "failed",
        "interrupted",
        "interrupted",
    ]
    assert stored(path)[-1] == (1, "failed", 10)
    assert noted(faults, "begun").count("2") == 0


@pytest.mark.usefixtures("connection")
@pytest.mark.filterwarnings("ignore:run 1 was taken over")
def test_a_run_that_another_takes_over_is_left_to_it(
    engine: Engine, path: Path, faults: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNABRO_LEASE_SECONDS", "0.5")

    class Thief(Log):
        """Takes the run over, and dies."""

        def event(self, slot: int, run: Run, event: events.Event) -> None:
            super().event(slot, run, event)
            if self.of(0).count("RoundsDone") == 1:
                silence = "heartbeat_at = '2020-01-01 00:00:00.000000', heartbeat_clock = NULL"
                change(path, f"UPDATE runs SET owner = 'elsewhere:1:1:1', {silence}")

    log = Thief()
    (outcome,) = make(engine, 1, faults, log)
    assert outcome.status == "finished"
    assert noted(faults, "claimed") == ["0", "0"]
    assert log.of(0).count("Finished") == 1
    assert stored(path) == [(0, "finished", 20)]
    assert read(path, "SELECT COUNT(*) FROM rounds") == [(20,)]


@pytest.mark.usefixtures("connection")
@pytest.mark.slow
def test_another_version_on_a_node_fails_the_run_and_tells(engine: Engine, path: Path) -> None:
    (outcome,) = make(engine, 1, None, entry="of_another_version")
    assert outcome.status == "failed"
    assert "it has another version of dynabro or a component (on " in (outcome.message or "")
    assert stored(path) == []


@pytest.mark.usefixtures("connection")
def test_nodes_that_cannot_begin_are_an_error(engine: Engine, path: Path) -> None:
    with pytest.raises(
        RunError, match=r"3 starts of a task in a row .* ImportError: no component of this name"
    ):
        make(engine, 5, None, entry="broken")
    assert stored(path) == []


@pytest.mark.usefixtures("connection")
def test_a_run_that_is_lost_is_made_again_when_the_cluster_has_shrunk(
    engine: Engine, faults: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynabro_cli.runs.executors.backends.ray.tasks.MEASURE_SECONDS", 0)
    monkeypatch.setattr(
        Share,
        "fit",
        lambda *_: 1 if (faults / "notes").exists() and "1" in noted(faults, "claimed") else 2,
    )
    (faults / "1").write_text("middle exit once")
    assert [outcome.status for outcome in make(engine, 2, faults)] == ["finished"] * 2
    assert noted(faults, "begun").count("1") == 2


# --- shares of the cluster


@pytest.mark.usefixtures("connection")
def test_a_run_that_is_worth_it_gets_a_share_of_a_gpu(
    engine: Engine, faults: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quadratics stand for other models here."""
    monkeypatch.setattr(
        "dynabro_cli.simulation.placing.takes_gpu", lambda run, _: run.spec.batch_size == 1
    )
    runs = [quadratic(0, batch_size=2), quadratic(1)]
    outcomes = make(
        engine, runs, faults, None, "half_way", device="auto", jobs_per_gpu=2, checkpoint_every=1e-6
    )
    assert [outcome.status for outcome in outcomes] == ["finished"] * 2
    assert re.search(r"on cpu of GPUs (None)?$", log_of(engine, runs[0]), re.MULTILINE)
    assert "on cuda:0 of GPUs 0" in log_of(engine, runs[1])


def test_how_many_runs_fit() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 3.0}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
        {"Alive": True, "Resources": {}},
    ]
    assert [Share(cpus, 0.0).fit(nodes) for cpus in (1, 2, 3, 4, 9)] == [11, 5, 3, 2, 0]
    assert [Share(1, 1 / each).fit(nodes) for each in (1, 3, 49)] == [2, 6, 8]


def test_a_process_that_holds_another_gpu_makes_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_node, "_first_gpus", lambda: "0")
    for on_gpu, now, misplaced in ((True, "1", True), (True, "0", False), (False, "1", False)):
        monkeypatch.setattr(
            "dynabro_cli.runs.executors.worker.on_gpu", lambda on_gpu=on_gpu: on_gpu
        )
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", now)
        assert ray_node._misplaced() == misplaced


# --- programs: two at once, SIGTERM, kill -9, and one that is no node


@pytest.fixture
def program(
    cluster: Any, path: Path, faults: Path
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program that makes runs of ``ray_faults``."""
    programs = []

    def call(
        entry: str, jobs: int, seeds: int, address: str = cluster.address
    ) -> subprocess.Popen[str]:
        command = [sys.executable, str(ROOT / "tests/runs/executors/ray_program.py")]
        command += [str(path), address, entry, str(faults), str(jobs), str(seeds)]
        process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        programs.append(process)
        return process

    yield call
    for process in programs:
        process.kill()
        process.communicate()


def wait_until_at_work(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n", process.communicate()


def without_rays_log(err: str) -> str:
    """Leave out what Ray's server says of a client's connection, which reaches the client where it
    stays for long enough.
    """
    return "".join(
        line
        for line in err.splitlines(keepends=True)
        if not re.search(r"\t(INFO|WARNING) worker\.py:", line)
    )


@pytest.mark.parametrize("how", ["node", pytest.param("client", marks=pytest.mark.slow)])
def test_sigterm_stores_checkpoints_and_the_same_command_goes_on(
    how: str,
    cluster: Any,
    client_port: int,
    program: Callable[..., subprocess.Popen[str]],
    engine: Engine,
    path: Path,
) -> None:
    address = cluster.address if how == "node" else f"ray://127.0.0.1:{client_port}"
    process = program("half_way", 2, 3, address)
    wait_until_at_work(process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, without_rays_log(err)) == (75, "")
    assert out == "terminated; runs stored as interrupted: 2; the same command resumes from here\n"
    assert stored(path) == [(0, "interrupted", 10), (1, "interrupted", 10)]
    assert read(path, "SELECT COUNT(checkpoint) FROM runs") == [(2,)]

    process = program("half_way", 2, 2, address)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[-1:], without_rays_log(err)) == (
        0,
        ["finished finished"],
        "",
    )
    assert stored(path) == [(0, "finished", 20), (1, "finished", 20)]
    assert read(path, "SELECT COUNT(*) FROM rounds") == [(40,)]
    assert "resuming after round 10" in log_of(engine, quadratic(0))


@pytest.mark.slow
def test_two_at_once_make_each_run_once(
    program: Callable[..., subprocess.Popen[str]], path: Path, faults: Path
) -> None:
    both = [program("made_up", 1, 6), program("made_up", 1, 6)]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    first, second = (out.splitlines()[-1].split() for out, _ in answers)
    for ours, theirs in zip(first, second, strict=True):
        assert sorted([ours, theirs]) == ["finished", "stored"]
    assert sorted(noted(faults, "claimed"), key=int) == [str(seed) for seed in range(6)]
    assert read(path, "SELECT COUNT(*) FROM rounds") == [(6 * 20,)]


def test_nothing_stays_in_the_cluster_when_the_driver_is_killed(
    program: Callable[..., subprocess.Popen[str]], faults: Path
) -> None:
    for seed in range(2):
        (faults / str(seed)).write_text("middle hang")
    process = program("made_up", 2, 2)
    wait_until_at_work(process)
    workers = [os.pidfd_open(int(note.split()[0])) for note in noted(faults, "process")]
    process.kill()
    wait_for_the_end_of(workers)


# --- what is wrong before anything begins


@pytest.mark.usefixtures("connection")
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"jobs": 0}, "jobs=0 is not legal"),
        ({"device": "cuda:1"}, "device=cuda:1 is not legal on Ray"),
        (
            {"threads": 99},
            "no node of the Ray cluster has room for a run with threads=99; the largest has 1 CPUs",
        ),
    ],
)
def test_options_are_checked_against_the_cluster(
    options: dict[str, Any], problem: str, engine: Engine
) -> None:
    with pytest.raises(SpecError, match=problem):
        make(engine, 1, None, entry="broken", **options)


@pytest.mark.usefixtures("connection")
def test_a_precision_that_the_device_has_not(engine: Engine) -> None:
    with pytest.raises(SpecError, match="precision=tf32"):
        make(engine, [resolve(RunSpec(precision="tf32"))], None, entry="broken")


@pytest.mark.usefixtures("connection")
def test_another_version_on_the_head_is_told(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "__version__", "0.0.1")
    with pytest.raises(DynabroError, match=r"the Ray cluster has dynabro .*, but this is 0\.0\.1"):
        make(engine, 1, None, entry="broken")


def test_without_ray_it_says_what_to_type(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpecError, match=r"^[^\n]*pip install 'dynabro\[ray\]'$"):
        make(engine, 1, None)


def test_without_the_extras_of_the_client_it_says_what_to_type(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray.util.client", None)
    with pytest.raises(SpecError, match=r"pip install 'dynabro\[ray\]'"):
        make(engine, 1, None)


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_an_address_where_nobody_answers(
    prefix: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    address = f"{prefix}127.0.0.1:{free_port()}"
    with pytest.raises(
        NotFoundError,
        match=rf"no Ray cluster answers at {address}, which --address names \(.*refused",
    ):
        make(engine, 1, None, address=address)


def test_a_cluster_of_this_machine_that_has_ended(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    address = f"127.0.0.1:{free_port()}"
    file = tmp_path / "ray" / "ray_current_cluster"
    file.write_text(address)
    with pytest.raises(
        NotFoundError,
        match=rf"answers at {address}, which {file} names .* Try: ray start --head, or",
    ):
        make(engine, 1, None)


@pytest.mark.parametrize("file", [None, ""])
def test_no_cluster_on_this_machine(
    file: str | None, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: str, **_: object) -> None:
        raise ConnectionError(f"no running instance at {address}")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    if file is not None:
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(file)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(
        NotFoundError, match="no Ray cluster runs on this machine, and RAY_ADDRESS names none"
    ):
        make(engine, 1, None)


@pytest.mark.parametrize(("failures", "reached"), [(2, True), (3, False)])
def test_a_server_that_is_slow_is_tried_again(
    failures: int, reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def connect(_ray: object, address: str) -> None:
        tried.append(address)
        if len(tried) <= failures:
            raise ConnectionAbortedError("Initialization failure from server:\n")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_cluster, "_reach", lambda *_: None)
    monkeypatch.setattr(ray_cluster, "_connect", connect)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    expected = (
        contextlib.nullcontext()
        if reached
        else pytest.raises(NotFoundError, match="Initialization failure")
    )
    with expected, ray_cluster._connected(ray, "ray://head:10001"):
        pass
    assert tried == ["ray://head:10001"] * 3


def test_an_address_without_a_port(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(SpecError, match=r"address=ray://host is not legal. Try: ray://HOST:PORT"):
        make(engine, 1, None, address="ray://host")


def test_files_of_the_working_folder_do_not_run(cluster: Any, tmp_path: Path) -> None:
    for name in ("sqlalchemy", "torch", "scipy", "statistics"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py has run')\n")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "dynabro"
    program.write_text("from dynabro_cli.cli.app import main\nmain()\n")
    (tmp_path / "small.yaml").write_text(
        "name: small\nbase: {task: quadratic, method: sgd, budget: 20}\nseeds: [0]\n"
    )
    words = [
        "small.yaml",
        "--executor",
        "ray",
        "--address",
        cluster.address,
        "--device",
        "cpu",
        "--quiet",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(program), "sweep", *words]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_plugins_travel_with_the_runs(
    connection: None, engine: Engine, path: Path, tmp_path: Path
) -> None:
    """A component of each kind, whose files are gone when the nodes make the run."""
    with fresh():
        files = write_all(tmp_path)
        plugins.load(map(str, files))
        run = resolve(
            RunSpec.from_text(dict(re.findall(r"(\w+): (\S+)", ALL_KINDS)) | {"budget": "20"})
        )
        digests = json.loads(str(digests_of(run.components)))
        for file in files:
            file.unlink()
        outcomes = make(engine, [run], None, entry=ray_cluster.SIMULATION)
    assert [(outcome.status, outcome.message) for outcome in outcomes] == [("finished", None)]
    ((text,),) = read(path, "SELECT code_digests FROM runs")
    stored = json.loads(text)
    assert stored.pop("data/my-task")
    assert stored == digests
    assert sum("/my-" in name for name in digests) == 8
