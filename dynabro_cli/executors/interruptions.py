"""Ctrl-C and SIGTERM at points where nothing is half done, and a time limit for the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn

from dynabro_cli.errors import DynabroError, InterruptedRunError, PreemptedError

HARD_SECONDS = 4.5
"""Time from a signal to the end of the process, whatever it is doing: a cluster kills slower processes."""
ONE_SECONDS = 0.5
"""Signals within this time count as one: ``timeout`` and clusters signal a process and its group, too."""
SHOW_CURSOR = "\x1b[?25h"
_early: list[int] = []
"""A SIGTERM without a run in progress: an import in progress may drop the exception of the handler."""


class Interrupted(BaseException):
    """Raised if a signal interrupts interruptible work."""


def preempted(number: int, _frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM if there is nothing in progress to keep.

    Raises:
        PreemptedError: Always.
    """
    _early.append(number)
    raise _nothing_in_progress()


def _nothing_in_progress() -> PreemptedError:
    return PreemptedError("terminated; no run was in progress; run the command again")


class Interruptions:
    """Within the context, note the first Ctrl-C or SIGTERM; raise ``Interrupted`` only within ``allowed`` and in ``check``.

    So no transaction and no start of a process is interrupted in the middle. A second signal, ``ONE_SECONDS`` later or more,
    ends the process at once; so does the first one after ``HARD_SECONDS``, even in native code that does not return to Python.
    This changes nothing outside the main thread, where Python handles no signals, or if the program has a handler of its own.

    Args:
        grace: Seconds between a signal and ``Interrupted``, for a simulation to get to the end of its round.

    Attributes:
        signal: The signal that arrived; None without one.
    """

    def __init__(self, grace: float = 0) -> None:
        self.signal: int | None = None
        self._grace, self._overdue, self._allowed = grace, grace == 0, False
        self._came = 0.0
        self._before: dict[int, Any] = {}
        self._wakeup: tuple[int, int] | None = None  # the file descriptor for signals, and the previous one

    def __enter__(self) -> Interruptions:
        if _early:
            raise _nothing_in_progress()
        if threading.current_thread() is threading.main_thread():
            usual = {signal.SIGINT: (signal.default_int_handler,), signal.SIGTERM: (signal.SIG_DFL, preempted)}
            for number, handlers in usual.items():
                if signal.getsignal(number) in handlers:
                    self._before[number] = signal.signal(number, self._handle)
            if self._before:
                self._watch(set(self._before))
            if self._before and self._grace:
                self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._late)
        return self

    def _watch(self, numbers: set[int]) -> None:
        """Let Python write signals to a pipe when they arrive, and a thread read it: handlers wait for native code."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self._wakeup = writing, signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        threading.Thread(target=_end_late, args=(reading, numbers), daemon=True, name="dynabro signals").start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._grace and self.signal is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._wakeup is not None:
            writing, before = self._wakeup
            signal.set_wakeup_fd(before)
            os.close(writing)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            if time.monotonic() - self._came >= ONE_SECONDS:
                time.sleep(HARD_SECONDS)  # the watching thread is about to end the process
            return
        self.signal, self._came = number, time.monotonic()
        if self._grace:
            signal.setitimer(signal.ITIMER_REAL, self._grace)
        elif self._allowed:
            raise Interrupted

    def _late(self, _number: int, _frame: FrameType | None) -> None:
        self._overdue = True
        if self._allowed:
            raise Interrupted

    def check(self) -> None:
        """Raise Interrupted after a signal and its time of grace."""
        if self.signal is not None and self._overdue:
            raise Interrupted

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Let a signal interrupt the work within the context."""
        self._allowed = True
        try:
            self.check()
            yield
        finally:
            self._allowed = False

    def error(self, text: str) -> DynabroError:
        """Return the error, with its exit code, for the signal that arrived."""
        if self.signal == signal.SIGTERM:
            return PreemptedError(f"terminated; {text}")
        return InterruptedRunError(f"interrupted; {text}")


def _end_late(reading: int, numbers: set[int]) -> None:
    """End the process at the second signal, or ``HARD_SECONDS`` after the first, unless the pipe is closed before."""
    first, began = None, 0.0
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while True:
        if not poll.poll(None if first is None else max(0.0, began + HARD_SECONDS - time.monotonic()) * 1000):
            _end(first or signal.SIGTERM)
        came = os.read(reading, 64)
        if not came:
            os.close(reading)
            return
        for number in came:
            if number in numbers and first is None:
                first, began = number, time.monotonic()
            elif number in numbers and first is not None and time.monotonic() - began >= ONE_SECONDS:
                _end(first)


def _end(number: int) -> None:
    """End this process now. Worker processes end with it; stored rows are intact."""
    code = PreemptedError.exit_code if number == signal.SIGTERM else InterruptedRunError.exit_code
    with contextlib.suppress(OSError):
        cursor = SHOW_CURSOR if sys.stderr.isatty() else ""
        os.write(2, f"{cursor}dynabro: ended at once; the same command resumes from the last checkpoint\n".encode())
    os._exit(code)
