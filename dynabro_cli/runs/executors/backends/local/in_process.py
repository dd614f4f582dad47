"""The back end of ``--jobs 0``: this process computes while the scheduler waits, as a debugger
needs it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from dynabro_cli.core.machine.devices import refuse_spoilt
from dynabro_cli.runs.executors import backend
from dynabro_cli.runs.executors.backend import Ended
from dynabro_cli.runs.executors.worker import (
    MemoryCheck,
    Request,
    Simulate,
    WorkerMessage,
    messages,
    simulation,
    tidy,
)


class InProcess:
    """One place, in this process: a ``Backend``.

    Output of a run goes to the terminal, and a breakpoint stops there. A time limit counts at the
    next event only. A signal during the computation ends it at once, and the run resumes from its
    last checkpoint.
    """

    maker = "computation"
    memory_check: MemoryCheck = "all"
    checkpoint_resets_retries = False
    capacity = 1

    def __init__(self) -> None:
        self._simulate: Simulate | None = None
        self._run: Iterator[WorkerMessage] | None = None
        self._next: WorkerMessage | Ended | None = None
        self._leaving = False

    def free(self, place: int) -> bool:
        """Return True if no run is in progress."""
        return self._run is None

    def start(self, place: int) -> bool:
        """Return True: there is nothing to start."""
        return True

    def send(self, place: int, request: Request) -> None:
        """Take a run, which ``wait`` makes; raise RunError if this process cannot make it."""
        refuse_spoilt(request.device)
        self._simulate = self._simulate or simulation()
        self._run = messages(self._simulate, request, lambda: self._leaving)

    def answer(self, place: int, ours: bool) -> None:
        """Answer ``Started``."""
        if not ours:
            self._run = None

    def wait(self, seconds: float | None) -> None:
        """Compute until the next event."""
        if self._next is not None:
            return
        if self._run is None:
            time.sleep(seconds or 0)
            return
        try:
            self._next = next(self._run, None)
        except BaseException:  # a signal has ended the computation, which cannot continue
            self._run, self._next = None, Ended("was interrupted")
            raise
        if self._next is None:
            self._run = None
            tidy()

    def collect(self) -> Iterator[tuple[int, backend.Message | Ended]]:
        """Yield the event that ``wait`` has computed."""
        message, self._next = self._next, None
        if message is not None:
            yield 0, message  # type: ignore[misc]  # never Ready, which only processes send

    def leave(self, places: Collection[int]) -> None:
        """Ask for a checkpoint, unless the signal has ended the computation."""
        self._leaving = bool(places)

    def kill(self, place: int) -> None:
        """Forget the run in progress."""
        self._run = None

    def reap(self, place: int) -> Iterator[backend.Message]:
        """Yield nothing: no message is on its way."""
        return iter(())

    def close(self) -> None:
        """Forget the run in progress."""
        self._run = None
