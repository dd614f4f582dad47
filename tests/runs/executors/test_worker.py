"""A worker process from inside: what goes from one run to the next, and what does not."""

from __future__ import annotations

import dataclasses
import functools
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dynabro_cli.core.errors import DoubtfulRunError, OccupiedError, RunError, SpecError
from dynabro_cli.core.events import Event, Finished
from dynabro_cli.core.machine import mps
from dynabro_cli.experiment import data
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.gradients.graphs import KernelCapture
from dynabro_cli.runs.executors import worker
from dynabro_cli.runs.executors._api import Failure
from dynabro_cli.runs.executors.worker import Begun, Ready, Request, Stop, answer, simulation
from tests.runs.executors.made_runs import quadratic
from tests.runs.store.made import checkpointed, finished, rounds, started


class Pipe:
    """An end of a pipe whose other end asks, and answers as requested."""

    def __init__(self, *answers: object) -> None:
        self.sent: list[Any] = []
        self._answers = iter(answers)

    def send(self, message: object) -> None:
        self.sent.append(message)

    def recv(self) -> object:
        try:
            return next(self._answers)
        except StopIteration:
            raise EOFError from None

    def poll(self) -> bool:
        return False


def request(run: Run, **changes: Any) -> Request:
    plain = Request(
        dataclasses.asdict(run.spec), run.key, None, "cpu", torch.get_num_threads(), "off"
    )
    return dataclasses.replace(plain, **changes)


def never() -> bool:
    return False


def made_up(asked: Request, _: object) -> Iterator[Event]:
    yield started(asked.key)
    yield rounds(0, 3)
    yield finished(4)


def kinds(pipe: Pipe) -> list[str]:
    return [type(message).__name__ for message in pipe.sent]


def test_requests_are_answered_one_after_another() -> None:
    asked = request(quadratic(0))
    pipe = Pipe(asked, True, asked, False, asked, True)
    answer(pipe, made_up)  # type: ignore[arg-type]
    whole, refused = ["Begun", "Started", "RoundsDone", "Finished"], ["Begun", "Started"]
    assert kinds(pipe) == ["Ready", *whole, *refused, *whole]
    assert pipe.sent[:3] == [Ready(), Begun(), started(asked.key)]


def test_a_failure_is_told_and_the_next_request_answered() -> None:
    def broken(asked: Request, _: object) -> Iterator[Event]:
        yield started(asked.key)
        raise ValueError("bang\nand more")

    asked = request(quadratic(0))
    pipe = Pipe(asked, True, asked, True)
    answer(pipe, broken)  # type: ignore[arg-type]
    assert kinds(pipe) == ["Ready", *["Begun", "Started", "Failure"] * 2]
    failure: Failure = pipe.sent[-1]
    assert (failure.reason, failure.expected) == ("ValueError: bang", False)
    assert failure.details.startswith("Traceback")
    assert failure.details.endswith("ValueError: bang\nand more\n")


class Stopping(Pipe):
    """A pipe whose other end sends ``Stop`` when two checkpoints have come."""

    def poll(self) -> bool:
        return kinds(self).count("Checkpointed") == 2

    def recv(self) -> object:
        return Stop() if self.poll() else super().recv()


def with_checkpoints(asked: Request, wanted: Callable[[], bool]) -> Iterator[Event]:
    yield started(asked.key)
    for number in range(9):
        yield rounds(number, number)
        if wanted() or number < 2:
            yield checkpointed(number + 1)
    yield finished(9)


def test_a_run_is_left_after_a_checkpoint_when_the_parent_wants_that() -> None:
    asked = request(quadratic(0))
    pipe = Stopping(asked, True, asked, True)
    answer(pipe, with_checkpoints)  # type: ignore[arg-type]
    made = ["RoundsDone", "Checkpointed"]
    assert kinds(pipe) == ["Ready", "Begun", "Started", *made, *made, "Left"]  # and no second run


def test_checkpoints_are_due_every_so_many_seconds() -> None:
    asked = request(quadratic(0), checkpoint_every=1e-9)
    pipe = Pipe(asked, True)
    answer(pipe, with_checkpoints)  # type: ignore[arg-type]
    assert kinds(pipe).count("Checkpointed") == 9
    pipe = Pipe(dataclasses.replace(asked, checkpoint_every=3600), True)
    answer(pipe, with_checkpoints)  # type: ignore[arg-type]
    assert kinds(pipe).count("Checkpointed") == 2


def test_a_worker_that_is_idle_ends_when_the_parent_wants_that() -> None:
    pipe = Pipe(Stop(), request(quadratic(0)), True)
    answer(pipe, made_up)  # type: ignore[arg-type]
    assert kinds(pipe) == ["Ready"]


def test_events_that_lead_nowhere_are_a_failure() -> None:
    pipe = Pipe(request(quadratic(0)), True)
    answer(pipe, lambda asked, _: iter([started(asked.key), rounds(0, 3)]))  # type: ignore[arg-type]
    assert pipe.sent[-1] == Failure(*["the simulation ended without a result"] * 2, expected=True)


@pytest.mark.parametrize(
    ("error", "doubtful", "occupied", "code"),
    [
        (DoubtfulRunError("replay 8 differs"), True, False, 70),
        (OccupiedError("memory: too little"), False, True, 2),
        (SpecError("memory: too little"), False, False, 2),
    ],
)
def test_a_failure_says_how_the_run_can_be_made_again(
    error: Exception, doubtful: bool, occupied: bool, code: int
) -> None:
    def fails(asked: Request, _: object) -> Iterator[Event]:
        yield started(asked.key)
        raise error

    pipe = Pipe(request(quadratic(0)), True)
    answer(pipe, fails)  # type: ignore[arg-type]
    text = str(error)
    assert pipe.sent[-1] == Failure(text, text, True, code, doubtful, occupied)


def test_data_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, Path]] = []
    read = data.read

    def counted(task: Any, data_dir: Path) -> Any:
        loaded.append((task.text, data_dir))
        return read(task, data_dir)

    monkeypatch.setattr(data, "read", counted)
    simulate = simulation()
    digits = [
        resolve(RunSpec(task="digits", model="logistic", method="sgd", budget=1, seed=seed))
        for seed in (0, 1)
    ]
    for run in (*digits, quadratic(0), quadratic(1), digits[0]):
        assert isinstance(list(simulate(request(run, data_dir=Path("here")), never))[-1], Finished)
    list(simulate(request(digits[0], data_dir=Path("there")), never))
    here = Path("here").absolute()
    assert loaded == [
        ("digits", here),
        ("quadratic", here),
        ("digits", here),
        ("digits", Path("there").absolute()),
    ]


def test_a_spec_that_means_another_run_here_is_refused() -> None:
    with pytest.raises(RunError, match="takes the spec for another run"):
        simulation()(request(quadratic(0), key=quadratic(1).key), never)


def test_nothing_is_kept_of_a_run_that_is_over() -> None:
    class Large:
        pass

    seen: list[weakref.ref[Large]] = []

    def circular(asked: Request, _: object) -> Iterator[Event]:
        large: Any = Large()
        large.itself = large
        assert all(reference() is None for reference in seen)
        seen.append(weakref.ref(large))
        yield from made_up(asked, _)

    asked = request(quadratic(0))
    gc.disable()
    try:
        pipe = Pipe(asked, True, asked, True)
        answer(pipe, circular)  # type: ignore[arg-type]
    finally:
        gc.enable()
    assert kinds(pipe).count("Finished") == 2


@pytest.mark.thorough
def test_compiled_code_of_earlier_runs_is_forgotten() -> None:
    import torch._dynamo.config

    compiled = []

    def backend(graph: Any, _inputs: object) -> Any:
        compiled.append(graph)
        return graph.forward

    def simulate(asked: Request, _: object) -> Iterator[Event]:
        def server(x: torch.Tensor) -> torch.Tensor:  # as each run makes one, of the same code
            return x + asked.spec["seed"]

        assert functools.partial(
            torch.compile, server, backend=backend, fullgraph=True, dynamic=False
        )()(torch.ones(2)).sum()
        yield from made_up(asked, _)

    asked = [request(quadratic(seed)) for seed in range(6)]
    pipe = Pipe(*(message for one in asked for message in (one, True)))
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        answer(pipe, simulate)  # type: ignore[arg-type]
    assert kinds(pipe).count("Finished") == 6, pipe.sent[-1]
    assert len(compiled) == 6


def test_an_idle_process_keeps_no_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: emptied.append("cache"))
    private = SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: emptied.append("workspaces"))
    monkeypatch.setitem(worker.sys.modules, "torch", SimpleNamespace(cuda=cuda, _C=private))
    answer(Pipe(Request({}, "ab", None, "cpu", 1, "off"), True), made_up)  # type: ignore[arg-type]
    assert emptied == ["workspaces", "cache"]


def test_a_process_in_which_a_capture_has_failed_makes_no_other_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Request({}, "ab", None, "cpu", 1, "off")

    def simulate(request: Request, wanted: object) -> Iterator[Event]:
        monkeypatch.setattr(KernelCapture, "failed", KernelCapture.failed + 1)
        return made_up(request, wanted)

    pipe = Pipe(asked, True, asked, True)
    answer(pipe, simulate)  # type: ignore[arg-type]
    assert kinds(pipe) == ["Ready", "Begun", "Started", "RoundsDone", "Finished"]


def test_a_process_keeps_the_service_of_its_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.os, "environ", {})
    folders: list[str | None] = []

    def noted(asked: Request, wanted: Callable[[], bool]) -> Iterator[Event]:
        folders.append(worker.os.environ.get(mps.FOLDER))
        yield from made_up(asked, wanted)

    plain = request(quadratic(0))
    served, alone = (
        dataclasses.replace(plain, mps="folder"),
        dataclasses.replace(plain, mps="folder/none"),
    )
    for first, last in ((served, alone), (plain, served)):
        pipe = Pipe(first, True, first, True, plain, True, last, True)
        answer(pipe, noted)  # type: ignore[arg-type]
        assert kinds(pipe)[-2:] == ["Finished", "Misplaced"]
        monkeypatch.delitem(worker.os.environ, mps.FOLDER, raising=False)
    assert folders == ["folder"] * 3 + [None] * 3


def test_a_process_is_under_its_parents_control_before_anything_slow_is_loaded() -> None:
    """A worker process uses no database, and loads torch when it ends with its parent."""
    program = (
        "import sys, dynabro_cli.runs.executors.worker; print(*{'sqlalchemy', 'torch', "
        "'numpy', 'typer'} & set(sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "\n"
    )
