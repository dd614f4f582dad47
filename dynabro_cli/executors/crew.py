"""The parent's side of a worker process: start it, talk to it, and find out why it died."""

from __future__ import annotations

import contextlib
import os
import signal
from multiprocessing import get_context, resource_tracker
from typing import cast

from dynabro_cli.errors import RunError
from dynabro_cli.executors.worker import PARENTS_SIGNALS, Message, Request, Stop, start

GRACE = 5.0
"""Seconds from closing a process's pipe until the process must have ended."""


class Worker:
    """A process, started at once by the ``spawn`` method, and the pipe to it.

    Each worker has a pipe of its own: a worker that is killed while it writes could lock a shared queue for ever.

    Attributes:
        ready: True after the process has reported that it waits for requests.
        connection: The parent's end of the pipe, to wait for.
        sentinel: A handle to wait for the death of the process.
        pid: The number of the process.

    Args:
        entry: The function of the process, as ``module:name``.

    Raises:
        RunError: The system does not start more processes.
    """

    def __init__(self, entry: str) -> None:
        context = get_context("spawn")
        self.ready = False
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=start, args=(entry, theirs, os.getpid()), name="dynabro worker")
        resource_tracker.ensure_running()  # the first worker would start the tracker, and that unblocks signals
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)  # inherited; the worker will ignore them
        try:
            self._process.start()
        except OSError as error:
            self.connection.close()
            raise RunError(f"no worker process can be started ({error.strerror}); type a smaller --jobs") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()
        self.sentinel, self.pid = self._process.sentinel, self._process.pid

    def send(self, message: Request | Stop | bool) -> None:
        """Send a message; nothing for a dead worker, whose death is found when its messages are received."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def receive(self) -> Message | None:
        """Wait for a message; None if the pipe has ended, possibly in the middle of a message."""
        try:
            return cast(Message, self.connection.recv())
        except (EOFError, OSError):
            return None

    def left(self) -> Message | None:
        """Return the next message that a dead worker had sent."""
        return self.receive() if self.connection.poll() else None

    def kill(self) -> None:
        """Kill the process; it holds nothing that would be lost."""
        self._process.kill()

    def bury(self) -> str:
        """Wait for the end of the process, and describe it in words."""
        self._process.join(GRACE)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        code = self._process.exitcode or 0
        if code >= 0:
            return f"exited with code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"was killed by {name}" + (", most likely because memory ran out" if -code == signal.SIGKILL else "")

    def close(self) -> None:
        """Release the parent's resources of a dead worker."""
        self.connection.close()
        self._process.close()
