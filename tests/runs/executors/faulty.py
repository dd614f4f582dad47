"""Workers whose runs are made up, and go wrong on purpose: which ones, where and how is read from
the environment.

``FAULTS`` is a folder. A file in it named like a run's seed holds a place and a fault, such as
``middle SIGKILL``; with ``once`` as a third word only the first process that makes the run goes
wrong. What processes do is noted in the file ``notes``.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dynabro_cli.core import events
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.machine.mps import FOLDER
from dynabro_cli.runs.executors.worker import Ready, Request, answer
from tests.runs.store.made import evaluated, finished, rounds, started

ROUNDS = 20


def serve(connection: Connection) -> None:
    """Make up runs."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer(connection, simulate)


def serve_on_gpu(connection: Connection) -> None:
    """Make up runs in a process that seems to use a GPU."""
    cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: None)
    sys.modules["torch"] = SimpleNamespace(  # type: ignore[assignment]
        cuda=cuda, _C=SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: None)
    )
    serve(connection)


def serve_once(connection: Any) -> None:
    """Make up one run, and die after it without reporting anything."""

    def send(message: object) -> None:
        connection.send(message)
        if isinstance(message, events.Finished):
            os._exit(0)

    serve(SimpleNamespace(send=send, recv=connection.recv))  # type: ignore[arg-type]


def cannot_import(connection: Connection) -> None:
    """As where the memory is limited."""
    raise ImportError("libgiant.so: failed to map segment from shared object\nand more")


def die_at_once(_: Connection) -> None:
    os._exit(3)


def die_when_ready(connection: Connection) -> None:
    connection.send(Ready())
    os._exit(3)


def fall_silent(connection: Connection) -> None:
    """Close the pipe, and live on."""
    connection.close()
    _hang()


def die_while_sending(connection: Any) -> None:
    """Make up a run, and die in the middle of its last message."""

    def send(message: object) -> None:
        if isinstance(message, events.Finished):
            os.write(connection.fileno(), struct.pack("!i", 1000) + b"half a message")
            os._exit(1)
        connection.send(message)

    serve(SimpleNamespace(send=send, recv=connection.recv))  # type: ignore[arg-type]


def die_when_asked(connection: Connection) -> None:
    """Die with the first request in hand."""
    connection.send(Ready())
    connection.recv()
    os._exit(3)


def simulate(request: Request, _: Callable[[], bool]) -> Iterator[events.Event]:
    seed = request.spec["seed"]
    print("noise", flush=True)
    warnings.warn("noise", stacklevel=1)
    first = _note(f"begun {seed}")
    _note(
        f"process {os.getpid()} threads {request.threads} sigint "
        f"{signal.getsignal(signal.SIGINT)!r}"
    )
    if request.mps is not None:
        _note(f"service of {seed} {os.environ[FOLDER]}")
    place, fault = _planned(seed, first)
    if place == "start":
        _go_wrong(fault)
    yield started(request.key, **request.spec)
    _note(f"claimed {seed}")
    yield evaluated(0)
    yield rounds(0, ROUNDS // 2 - 1)
    if place == "middle":
        _go_wrong(fault)
    yield rounds(ROUNDS // 2, ROUNDS - 1)
    yield evaluated(ROUNDS)
    yield finished(ROUNDS)


def _note(text: str) -> bool:
    """Write a line; return whether it is the first of its kind."""
    path = Path(os.environ["FAULTS"]) / "notes"
    new = not path.exists() or text not in path.read_text().splitlines()
    with path.open("a") as file:
        file.write(text + "\n")
    return new


def _planned(seed: int, first: bool) -> tuple[str, str]:
    try:
        place, fault, *once = (Path(os.environ["FAULTS"]) / str(seed)).read_text().split()
    except FileNotFoundError:
        return "", ""
    return ("", "") if once and not first else (place, fault)


def _go_wrong(fault: str) -> None:
    if fault == "raise":
        raise ValueError("bang")
    if fault == "refuse":
        raise NotFoundError("no such data")
    if fault == "exit":
        os._exit(0)
    if fault == "hang":
        _hang()
    if fault == "tell":  # let the test know, then hang
        with (Path(os.environ["FAULTS"]) / "gate").open("wb", buffering=0) as gate:
            gate.write(b"!")
        _hang()
    if fault == "gate":  # wait until the test opens it, then fail
        with (Path(os.environ["FAULTS"]) / "gate").open("rb", buffering=0) as gate:
            gate.read(1)
        raise ValueError("bang")
    if fault.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, fault))


def _hang() -> None:
    os.read(os.pipe()[0], 1)
