"""Shares of a run: gradients, server, mini-batches, recorder, evaluations, and the rest."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine, table
from benchmarks.memory import write_noise
from benchmarks.processes import Block, workers
from dynabro_cli import RunSpec, simulate
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.events import RoundsDone
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.recorder import Recorder
from dynabro_cli.simulation.loop import Simulation
from dynabro_cli.simulation.problem.images import ImageProblem
from dynabro_cli.simulation.problem.mini_batches import BatchSource
from dynabro_cli.simulation.round import update
from dynabro_cli.simulation.round.acceptance import Probe
from dynabro_cli.simulation.setup import data_directory

PARTS = ("gradients", "server", "acceptance ratio", "batches", "step", "recorder", "evaluations")
HEADER = ["run", "ms a round", *PARTS, "the rest"]


@dataclass(frozen=True)
class How:
    """Settings of the runs, as in ``dynabro run``; a run is timed for ``rounds`` rounds."""

    data_dir: Path | None = None
    threads: int | None = None
    compile: str = "auto"
    rounds: int = 200


class Stopwatch:
    """The time spent in each of several functions, without the time of the other functions that it
    calls.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._open: list[str] = []
        self._since = time.perf_counter()

    def around(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return the function with its time counted for a part."""

        @functools.wraps(function)
        def watched(*arguments: Any, **keywords: Any) -> Any:
            self._turn()
            self._open.append(part)
            try:
                return function(*arguments, **keywords)
            finally:
                self._turn()
                self._open.pop()

        return watched

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def install(self) -> None:
        """Put the stopwatch around the parts of a run, for the rest of the process."""
        for owner, name, part in (
            (ImageProblem, "gradients", "gradients"),
            (BatchSource, "of_workers", "batches"),
            (ImageProblem, "_batches", "batches"),
            (Probe, "__call__", "acceptance ratio"),
            (update.Step, "update", "step"),
            (Simulation, "_evaluate", "evaluations"),
            (Recorder, "record", "recorder"),
            (Recorder, "interrupted", "recorder"),
        ):
            setattr(owner, name, self.around(getattr(owner, name), part))
        make_server = update.make_server

        def watched_server(parts: Any) -> Any:
            server = make_server(parts)
            return server._replace(answer=self.around(server.answer, "server"))

        update.make_server = watched_server


def measure(tasks: list[str], how: How) -> str:
    """Run each task in a new process; return the table of shares."""
    rows = []
    for task in tasks:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(_row(task, how, Path(folder)))
    return (
        f"compile={how.compile}, shares of the time of a "
        f"run\n{machine('cpu', how.threads)}\n\n{table(HEADER, rows)}"
    )


def _row(task: str, how: How, folder: Path) -> list[object]:
    spec = spec_of(task)
    title = f"{task}, {spec.method or 'default'}"
    if task == "cifar10" and not (data_directory(how.data_dir) / "cifar-10-batches-py").is_dir():
        write_noise(folder / "noise", spec.batch_size or 64)
        spec, how = (
            replace(spec, task="image-folder:name=noise,like=cifar10", model="cnn-cifar"),
            replace(how, data_dir=folder),
        )
        title += ", images of noise"
    arguments = {"spec": spec, "how": how, "database": str(folder / "runs.db")}
    try:
        with workers({"ours": (whole, arguments)}, how.threads) as groups:
            block = groups["ours"][0].first
    except NotFoundError:
        return [title, "no data", *[None] * (len(HEADER) - 2)]
    shares = [block.phases[part] / block.seconds for part in PARTS]
    shown = [f"{share:.1%}" for share in (*shares, 1 - sum(shares))]
    return [title, 1000 * block.seconds / block.iterations, *shown]


def spec_of(task: str) -> RunSpec:
    """Return the run that is timed: digits' default run, otherwise worker momentum under sign flip.

    ``small`` has a small network on digits. A round on CIFAR-10 takes seconds, so evaluations come
    after every second round, on few images.
    """
    if task == "digits":
        return RunSpec()
    spec = RunSpec(task=task, method="momentum:beta=0.9", attack="sf", aggregator="cwtm")
    if task == "small":
        return replace(spec, task="digits", model="mlp", workers=17, byzantine=8)
    return (
        replace(spec, workers=25, byzantine=11, batch_size=64, budget=8000, eval_every=2)
        if task == "cifar10"
        else spec
    )


def whole(spec: RunSpec, how: How, database: str) -> Any:
    """Make a run with a recorder until its rounds are done; yield one block of all batches except
    the first, which warms up.
    """
    watch = Stopwatch()
    watch.install()
    recorder = Recorder(open_for_writing(database))
    done, begin = 0, 0.0
    for event in simulate(
        spec,
        data_dir=how.data_dir,
        device="cpu",
        threads=how.threads,
        compile=how.compile,
        force=True,
    ):
        recorder.record(event)
        if not isinstance(event, RoundsDone):
            continue
        if begin:
            done += len(event.rounds)
        else:
            watch.seconds = dict.fromkeys(PARTS, 0.0)
            begin = time.perf_counter()
        if done >= how.rounds:
            break
    # stores the rounds since its last commit, so that their time counts even if they are few
    recorder.interrupted()
    yield Block(done, time.perf_counter() - begin, watch.seconds)
