"""The worker's side: a process that makes one run after another, and sends the events of each to
its parent.

A worker sends ``Ready`` once, after all slow imports. Then it answers each ``Request`` with
``Begun``, the run's events, and a ``Failure`` if these do not end with ``Finished`` or
``Diverged``. After ``Started`` it waits for a bool: True if the parent has claimed the run;
otherwise it leaves the run and waits for the next request. On ``Stop`` it sends a checkpoint as
soon as it can, then ``Left``, and ends.

Torch is imported when the worker is under its parent's control, so this module does not import it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import io
import math
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from dynabro_cli.core.errors import (
    DoubtfulRunError,
    DynabroError,
    OccupiedError,
    PluginError,
    RunError,
    first_line,
)
from dynabro_cli.core.events import Checkpointed, Diverged, Event, Finished, SaveAt, Started
from dynabro_cli.core.machine.cores import spin_little
from dynabro_cli.core.machine.devices import on_gpu as on_gpu
from dynabro_cli.core.machine.devices import spoilt
from dynabro_cli.core.machine.mps import FOLDER
from dynabro_cli.core.machine.strangers_files import open_log
from dynabro_cli.core.registration import plugins
from dynabro_cli.core.registration.plugins import Plugin, load_sent
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.runs.executors._api import PREEMPTING, Failure

PARENTS_SIGNALS = (signal.SIGINT, *PREEMPTING)
PR_SET_PDEATHSIG = 1  # from Linux's prctl.h
WATCH_SECONDS = 0.5
"""Seconds between two looks at the parent, on systems that do not kill a process with its
parent.
"""


MemoryCheck = Literal["nothing", "gpu", "all"]


@dataclass(frozen=True)
class Request:
    """A run to be made: the fields of its complete spec, its key, and how to make it.

    ``memory_check`` says which memory is compared with the run's needs before it starts: the memory
    of the GPU, if others have checked the machine's already, or all memory. ``plugins`` are the
    parent's plugins. ``weights`` says when the run sends its model. With ``most_threads`` a small
    model takes one thread, not ``threads``. ``mps`` is the folder of CUDA's multi-process service,
    or a folder without one; None leaves the choice to the environment.
    """

    spec: dict[str, Any]
    key: str
    data_dir: Path | None
    device: str
    threads: int | None
    compile: str
    resume: bytes | None = None
    checkpoint_every: float = math.inf
    log: Path | None = None
    memory_check: MemoryCheck = "nothing"
    plugins: tuple[Plugin, ...] = ()
    weights: SaveAt = "never"
    most_threads: bool = False
    mps: str | None = None


@dataclass(frozen=True)
class Stop:
    """Request to leave the run in progress as soon as there is a checkpoint of it."""


@dataclass(frozen=True)
class Left:
    """The run was left after its checkpoint."""


@dataclass(frozen=True)
class Ready:
    """The worker waits for its first request."""


@dataclass(frozen=True)
class NotReady:
    """The process cannot work, and ends with this reason."""

    reason: str


@dataclass(frozen=True)
class Begun:
    """The worker has read a request."""


@dataclass(frozen=True)
class Misplaced:
    """The run was not started, because its process uses another GPU or is no longer usable; the
    process ends.
    """


WorkerMessage = Ready | NotReady | Begun | Left | Misplaced | Event | Failure
Simulate = Callable[[Request, Callable[[], bool]], Iterator[Event]]


def start(worker: str, pipe: str, parent: str) -> None:
    """Serve until the parent closes the pipe or ends; the arguments are words of the command line
    of this process.

    The parent handles Ctrl-C and the signals of clusters, which are sent to every process. They
    were blocked when this process was created, so that none arrives before it is ignored here. Only
    SIGXCPU is passed on: the system sends it to the process that has used up its processor time.
    Standard output is the parent's, too.

    Args:
        worker: The serving function, as ``module:name``.
        pipe: The descriptor of this end of the pipe.
        parent: The parent's process id.
    """
    connection = Connection(int(pipe))
    for number in PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGXCPU, functools.partial(_pass_on, int(parent)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)
    die_with_parent(int(parent))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    spin_little()
    faulthandler.enable(2)  # a crash of native code leaves a trace in the run's log
    module, _, name = worker.partition(":")
    # the parent does not need an answer any more
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        try:
            getattr(importlib.import_module(module), name)(connection)
        except (ImportError, OSError, MemoryError) as error:  # such as a library without room
            connection.send(NotReady(f"{type(error).__name__}: {first_line(error)}"))
            sys.exit(1)


def die_with_parent(parent: int) -> None:
    """Let this process be killed when its parent ends: by Linux's kernel, elsewhere by a thread."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # the parent ended before prctl was called
        os._exit(1)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


def _pass_on(parent: int, number: int, _frame: FrameType | None) -> None:
    # it comes every second; the parent takes the second one for impatience
    signal.signal(number, signal.SIG_IGN)
    os.kill(parent, number)


def serve(connection: Connection) -> None:
    """Answer requests with simulations."""
    simulate = simulation()
    gc.freeze()  # imported objects are not searched for garbage after every run
    answer(connection, simulate)


def simulation() -> Simulate:
    """Import the simulation, and return the function that makes a run, which keeps the data of the
    last one.

    Nothing else that could change numbers is kept from one run to the next. Random draws come from
    streams of the run's seed; the model's initialisation seeds torch's generator and restores it.
    Every run sets the number of threads and torch's precision, and makes its models and states.
    Nobody writes to the data, and ``tidy`` forgets compiled code.
    """
    from dynabro_cli.experiment.build import data_directory
    from dynabro_cli.experiment.data import read
    from dynabro_cli.experiment.resolve import resolve
    from dynabro_cli.simulation.need import check_room
    from dynabro_cli.simulation.placing import device_of
    from dynabro_cli.simulation.setup import simulate_run

    load = functools.lru_cache(maxsize=1)(read)

    def simulate(request: Request, wanted: Callable[[], bool]) -> Iterator[Event]:
        load_sent(request.plugins)
        run = resolve(RunSpec.from_mapping(request.spec)).with_data(
            data_directory(request.data_dir)
        )
        if run.key != request.key:
            raise RunError(
                "the worker process takes the spec for another run; it has another version of "
                "dynabro or a component"
            )
        if request.memory_check == "all" or (
            request.memory_check == "gpu" and request.device != "cpu"
        ):
            device, compiles = device_of(run, request.device), request.compile != "off"
            check_room(run, device, compiles=compiles, host=request.memory_check == "all")
        return simulate_run(
            run,
            data_dir=request.data_dir,
            device=request.device,
            threads=request.threads,
            compile=request.compile,
            load=load,
            resume=request.resume,
            wanted=wanted,
            weights=request.weights,
            most_threads=request.most_threads,
        )

    return simulate


def answer(connection: Connection, simulate: Simulate) -> None:
    """Answer every request with the events of ``simulate``, until the pipe is closed, or ``Stop``
    arrives.
    """
    connection.send(Ready())
    asked, used = _Asked(connection), False
    while True:
        try:
            request = connection.recv()
        except (EOFError, OSError):
            return
        if isinstance(request, Stop):
            return
        if request.mps is not None and request.mps != os.environ.get(FOLDER):
            if used:  # CUDA looks for the service when any run first asks for GPUs, and never again
                connection.send(Misplaced())
                return
            os.environ[FOLDER] = request.mps
        used = True
        with printing_to(request.log):
            for message in messages(simulate, request, asked):
                connection.send(message)
                if isinstance(message, Started) and connection.recv() is not True:
                    break
            if (
                asked.stop
                or spoilt(request.device)
                or (isinstance(message, Failure) and not message.expected and on_gpu())
            ):
                # an error on a GPU can leave the process unable to use it; the parent starts
                # another
                return
            tidy()


def messages(
    simulate: Simulate, request: Request, asked: Callable[[], bool]
) -> Iterator[WorkerMessage]:
    """Yield the messages about a run: ``Begun``, its events, and ``Left`` or ``Failure`` if it ends
    without a result.

    Args:
        simulate: Makes the run.
        request: The run.
        asked: Returns True if the run must be left at its next checkpoint.
    """
    yield Begun()
    try:
        for event in simulate(request, Due(request.checkpoint_every, asked)):
            yield event
            if isinstance(event, Finished | Diverged):
                return
            if isinstance(event, Checkpointed) and asked():
                yield Left()
                return
        raise RunError("the simulation ended without a result")
    except Exception as error:
        yield _failure_of(error)


class _Asked:
    """Return True if the parent has sent ``Stop``; call this during a run, when it sends nothing
    else.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.stop = False

    def __call__(self) -> bool:
        if not self.stop and self._connection.poll():
            self.stop = isinstance(self._connection.recv(), Stop)
        return self.stop


@contextlib.contextmanager
def printing_to(log: Path | None) -> Iterator[None]:
    """Append output of Python and native code to ``log``; if this fails, the output is lost."""
    if log is None:
        yield
        return
    try:
        file = open_log(log)
    except OSError:
        file = os.open(os.devnull, os.O_WRONLY)
    kept = os.dup(1), os.dup(2)
    try:
        with contextlib.redirect_stdout(_printed(1)), contextlib.redirect_stderr(_printed(2)):
            for number in (1, 2):
                os.dup2(file, number)
            yield
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)
        os.close(file)


class _Forgiving(io.FileIO):
    """A file whose write errors are ignored: the output is lost, and the run continues."""

    def write(self, data: Any, /) -> int:
        """Write the text, and return its full length."""
        with contextlib.suppress(OSError):
            super().write(data)
        return len(data)


def _printed(number: int) -> io.TextIOWrapper:
    """Return a text stream to a file descriptor, which it does not close; a crash loses no line."""
    raw = io.BufferedWriter(_Forgiving(number, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def tidy() -> None:
    """Forget the last run: dynamo keeps compiled code by function, and falls back to eager code
    after some runs.
    """
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
    gc.collect()
    if on_gpu():
        torch = sys.modules["torch"]
        # one for each stream, and each run has captured its graphs on a new one
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()  # others may share the GPU


class Due:
    """Decide when a run writes a checkpoint: at an interval, and on request.

    Args:
        every: Seconds between two checkpoints.
        asked: Returns True if a checkpoint is wanted at once.
    """

    def __init__(self, every: float, asked: Callable[[], bool]) -> None:
        self._every, self._asked = every, asked
        self._last = time.monotonic()

    def __call__(self) -> bool:
        if not self._asked() and time.monotonic() - self._last < self._every:
            return False
        self._last = time.monotonic()
        return True


def _failure_of(error: Exception) -> Failure:
    """Describe the exception that is being handled."""
    if isinstance(error, DynabroError):
        kinds = (isinstance(error, kind) for kind in (DoubtfulRunError, OccupiedError))
        return Failure(str(error), str(error), True, error.exit_code, *kinds)
    kind = RunError if plugins.where(error) is None else PluginError
    return Failure(
        plugins.described(error), traceback.format_exc(), expected=False, exit_code=kind.exit_code
    )
