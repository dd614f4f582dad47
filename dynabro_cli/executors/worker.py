"""The worker's side: a process that makes one run after another, and sends the events of each to its parent.

A worker sends ``Ready`` once, when all that is slow to import is there. Then it answers each ``Request`` with ``Begun``, the
run's events, and a ``Failure`` where these do not end with ``Finished`` or ``Diverged``. After ``Started`` it waits for a bool:
whether the parent has claimed the run; where not, it leaves the run and waits for the next request.

Torch is imported when the worker is under its parent's control, so this module does not import it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import multiprocessing
import os
import platform
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from dynabro_cli.errors import RunError
from dynabro_cli.events import Diverged, Event, Finished, Started
from dynabro_cli.executors._api import Failure, failure_of
from dynabro_cli.spec import RunSpec

PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


@dataclass(frozen=True)
class Request:
    """A run to be made: the fields of its complete spec, its key, and how to make it."""

    spec: dict[str, Any]
    key: str
    data_dir: Path | None
    device: str
    threads: int | None
    compile: str


@dataclass(frozen=True)
class Ready:
    """The worker waits for its first request."""


@dataclass(frozen=True)
class Begun:
    """The worker has read a request."""


Message = Ready | Begun | Event | Failure
Simulate = Callable[[Request], Iterator[Event]]


def start(worker: str, connection: Connection, parent: int) -> None:
    """What the process does: it serves until its parent closes the pipe, and does not outlive it.

    Ctrl-C, which a terminal sends to every process, is the parent's to handle; it was blocked when this process was made, so
    that none comes before it is ignored here. Standard output is the parent's, too.

    Args:
        worker: The function that serves, as ``module:name``.
        connection: This end of the pipe.
        parent: The parent's process id.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    die_with_parent(parent)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    module, _, name = worker.partition(":")
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent needs no answer any more
        getattr(importlib.import_module(module), name)(connection)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends, however that ends: by the kernel of Linux, elsewhere by a thread."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch_parent, daemon=True).start()
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(1)


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def serve(connection: Connection) -> None:
    """Answer requests with simulations."""
    simulate = simulation()
    gc.freeze()  # what is imported is not searched for garbage after every run
    answer(connection, simulate)


def simulation() -> Simulate:
    """Import what simulating needs, and return the function that makes a run, which keeps the data of the last.

    Nothing else goes from one run to the next that could change numbers: random draws come from streams of the run's seed (the
    model's initialisation seeds torch's generator, and puts it back), the number of threads and torch's switches of precision
    are set by every run, models and states are made anew, nobody writes to the data, and ``_tidy`` forgets compiled code.
    """
    from dynabro_cli.resolve import resolve
    from dynabro_cli.simulation.setup import load_data, simulate_run

    load = functools.lru_cache(maxsize=1)(lambda task, data_dir: load_data(task, data_dir))

    def simulate(request: Request) -> Iterator[Event]:
        run = resolve(RunSpec.from_mapping(request.spec))
        if run.key != request.key:
            raise RunError(
                "the worker process takes the spec for another run; it has another version of dynabro or a component"
            )
        return simulate_run(
            run,
            data_dir=request.data_dir,
            device=request.device,
            threads=request.threads,
            compile=request.compile,
            load=load,
        )

    return simulate


def answer(connection: Connection, simulate: Simulate) -> None:
    """Answer every request with the events that ``simulate`` makes of it, until the parent closes the pipe."""
    connection.send(Ready())
    while True:
        try:
            request = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(Begun())
        try:
            _send_events(connection, simulate(request))
        except Exception as error:
            failure = failure_of(error)
            connection.send(failure)
            if not failure.expected and _on_gpu():
                return  # an error on a GPU can leave the process unable to use it; the parent starts another
        _tidy()


def _send_events(connection: Connection, events: Iterator[Event]) -> None:
    """Send events up to the run's end; none after ``Started`` where the parent does not answer it with True."""
    for event in events:
        connection.send(event)
        if isinstance(event, Finished | Diverged) or (isinstance(event, Started) and not connection.recv()):
            return
    raise RunError("the simulation ended without a result")


def _tidy() -> None:
    """Forget the last run: dynamo keeps compiled code by function, and falls back to eager code after some number of runs."""
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
    gc.collect()
    if _on_gpu():
        sys.modules["torch"].cuda.empty_cache()  # others may share the GPU


def _on_gpu() -> bool:
    return "torch" in sys.modules and bool(sys.modules["torch"].cuda.is_initialized())
