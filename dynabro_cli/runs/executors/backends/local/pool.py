"""The back end of this machine: worker processes, each with a pipe, and the reasons of their
deaths.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any, cast

from dynabro_cli.core.errors import RunError
from dynabro_cli.core.machine.search_path import search_path
from dynabro_cli.runs.executors import backend, worker
from dynabro_cli.runs.executors.backend import Ended, Printed
from dynabro_cli.runs.executors.worker import (
    PARENTS_SIGNALS,
    Begun,
    MemoryCheck,
    NotReady,
    Ready,
    Request,
    Stop,
)

PROGRAM = (
    "import sys; sys.path[:] = sys.argv[4:]; from dynabro_cli.runs.executors.worker import "
    "start; start(*sys.argv[1:4])"
)
"""The program of a process. ``sys`` is built in: until its path is set, nothing is imported from
the working folder.
"""
WORKER = "dynabro_cli.runs.executors.worker:serve"
OF_ITSELF = "exited with code 0"
GRACE = 5.0
"""Seconds from closing a process's pipe until the process must have ended."""


class Worker:
    """A process, started at once, and the pipe to it, which ends when the process ends.

    Each worker has its own pipe: a worker that is killed while it writes could lock a shared queue
    for ever. The ``spawn`` method of multiprocessing would execute files of the working folder, and
    the main module of the user's program.

    Attributes:
        ready: True after the process has reported that it waits for requests.
        reason: Why it could not start, after a colon; empty if it has not said so.
        connection: The parent's end of the pipe, to wait for.
        pid: The number of the process.

    Args:
        entry: The function of the process, as ``module:name``.

    Raises:
        RunError: The system does not start more processes.
    """

    def __init__(self, entry: str) -> None:
        self.ready, self.reason = False, ""
        self.connection, theirs = Pipe()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # such as -O and -X utf8
        words = [
            sys.executable,
            *flags,
            "-c",
            PROGRAM,
            entry,
            str(theirs.fileno()),
            str(os.getpid()),
            *search_path(),
        ]
        # inherited; the worker will ignore them
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        except OSError as error:
            self.connection.close()
            raise RunError(
                f"no worker process can be started ({error.strerror}). Try: a smaller --jobs"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()
        self.pid = self._process.pid

    def send(self, message: Request | Stop | bool) -> None:
        """Send a message; nothing for a dead worker, whose death is found when its messages are
        received.
        """
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def receive(self) -> worker.WorkerMessage | None:
        """Wait for a message; None if the pipe has ended, possibly in the middle of a message."""
        try:
            return cast(worker.WorkerMessage, self.connection.recv())
        except (EOFError, OSError):
            return None

    def last_message(self) -> worker.WorkerMessage | None:
        """Return the next message that a dead worker had sent."""
        return self.receive() if self.connection.poll() else None

    def kill(self) -> None:
        """Kill the process; it holds nothing that would be lost."""
        self._process.kill()

    def reap(self) -> str:
        """Wait for the end of the process, and describe it in words."""
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code >= 0:
            return f"exited with code {code}{self.reason}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"was killed by {name}" + (
            ", most likely because memory ran out" if -code == signal.SIGKILL else ""
        )

    def close(self) -> None:
        """Release the parent's resources of a dead worker."""
        self.connection.close()


class Pool:
    """Worker processes of this machine, which stay from one run to the next: a ``Backend``.

    If the scheduler is slow, the pipes fill, and the workers wait.

    Args:
        entry: The function of a worker process, as ``module:name``; by default ``WORKER``.

    Attributes:
        capacity: Most processes at a time.
        memory_check: The memory that a process compares with a run's needs: the GPU's alone if the
            machine's was checked for all runs.
    """

    maker = "process"
    checkpoint_resets_retries = False

    def __init__(self, entry: str | None = None) -> None:
        self.capacity, self._entry = 1, entry or WORKER
        self.memory_check: MemoryCheck = "gpu"
        self._workers: dict[int, Worker] = {}
        self._ready: set[Any] = set()  # the pipes that the last ``wait`` has found

    def resize(self, places: int) -> None:
        """Set the capacity, and end processes beyond it, which must be idle."""
        self.capacity = places
        self._end([place for place in self._workers if place >= places])

    def free(self, place: int) -> bool:
        """Return True if there is no process here, or one that has reported that it waits for
        requests.
        """
        return place not in self._workers or self._workers[place].ready

    def start(self, place: int) -> bool:
        """Start a process, unless one runs; return True if it waits for requests."""
        if place not in self._workers:
            self._workers[place] = Worker(self._entry)
        return self._workers[place].ready

    def send(self, place: int, request: Request) -> None:
        """Send a run."""
        self._workers[place].send(request)

    def answer(self, place: int, ours: bool) -> None:
        """Answer ``Started``."""
        if place in self._workers:
            self._workers[place].send(ours)

    def wait(self, seconds: float | None) -> None:
        """Wait for a message or a death."""
        pipes = [process.connection for process in self._workers.values()]
        if pipes:
            self._ready = set(wait(pipes, seconds))
        else:
            time.sleep(seconds or 0)

    def collect(self) -> Iterator[tuple[int, backend.Message | Ended]]:
        """Yield at most one message of each living worker, so that all make progress, and what the
        dead ones had sent.
        """
        ready, self._ready = self._ready, set()
        for place, process in list(self._workers.items()):
            message = process.receive() if process.connection in ready else None
            if isinstance(message, Ready):
                process.ready = True
            elif isinstance(message, NotReady):
                process.reason = f": {message.reason}"
            elif message is not None:
                yield from self._forwarded(place, process, message)
            elif process.connection in ready:
                end = process.reap()
                # handling a message may have emptied the place
                while self._workers.get(place) is process:
                    if (last := process.last_message()) is None:
                        break
                    yield from self._forwarded(place, process, last)
                # a process may end itself between two runs, which is not a failed start
                if self._forget(place, process):
                    yield place, Ended(end, counts=not (process.ready and end == OF_ITSELF))

    def _forwarded(
        self, place: int, process: Worker, message: worker.WorkerMessage
    ) -> Iterator[tuple[int, backend.Message]]:
        if isinstance(message, Begun):
            yield place, Printed(f"begun by process {process.pid}")
        if not isinstance(message, Ready | NotReady):
            yield place, message

    def leave(self, places: Collection[int]) -> None:
        """Ask workers for a checkpoint and their end."""
        for place in places:
            self._workers[place].send(Stop())

    def kill(self, place: int) -> None:
        """Kill the process; it holds nothing that would be lost."""
        if place in self._workers:
            self._workers[place].kill()

    def reap(self, place: int) -> Iterator[backend.Message]:
        """Wait for the death of the process, and yield what it had sent."""
        process = self._workers.get(place)
        if process is None:
            return
        process.reap()
        try:
            while (message := process.last_message()) is not None:
                for _, forwarded in self._forwarded(place, process, message):
                    yield forwarded
        finally:
            self._forget(place, process)

    def _forget(self, place: int, process: Worker) -> bool:
        """Release a dead worker; return True if it was at the place until now."""
        if self._workers.get(place) is not process:
            return False
        del self._workers[place]
        process.close()
        return True

    def close(self) -> None:
        """Kill all workers."""
        self._end(list(self._workers))

    def _end(self, places: Collection[int]) -> None:
        ended = {place: self._workers[place] for place in places}
        for process in ended.values():
            process.kill()
        for place, process in ended.items():
            process.reap()
            self._forget(place, process)
