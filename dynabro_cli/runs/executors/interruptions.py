"""Ctrl-C, SIGTERM and the like at points where nothing is half done, and a time limit for the
end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn

from dynabro_cli.core.errors import DynabroError, InterruptedRunError, PreemptedError
from dynabro_cli.runs.executors._api import PREEMPTING

HARD_SECONDS = 4.5
"""Most seconds from a signal to the end of the process: a cluster kills slower processes."""
ONE_SECONDS = 0.5
"""Signals within this time count as one: ``timeout`` and clusters signal a process and its group,
too.
"""
MOST_SIGNALS = 4096
"""Signals that are read at once."""
SHOW_CURSOR = "\x1b[?25h"
arrived: list[int] = []
"""Signals that came without a run in progress: an import or SQLite may drop the exception of the
handler.
"""
handled: list[int] = []
"""The signals whose handler has run."""
USUAL: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    **dict.fromkeys(PREEMPTING, signal.SIG_DFL),
}
"""The signals that end a command, and Python's handlers for them. A signal that is ignored, as
under ``nohup``, stays so.
"""


class Interrupted(BaseException):
    """Error of interruptible work that a signal has interrupted."""


def handle_signals() -> None:
    """Handle the signals that end a command while no run is in progress, unless the program has its
    own handlers; end the process if they cannot run.
    """
    for number, usual in USUAL.items():
        if signal.getsignal(number) is usual:
            signal.signal(number, handle_signal)
    signal.set_wakeup_fd(_watched(), warn_on_full_buffer=False)


@functools.cache
def _watched() -> int:
    """Return the pipe to which the system writes each signal's number at once, for ``_watch``."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    threading.Thread(target=_watch, args=(reading,), daemon=True, name="dynabro signals").start()
    return writing


def _watch(pipe: int) -> None:
    """End the process if the handler of a signal has not run after ``HARD_SECONDS``.

    Python's handlers wait for the main thread, which may be in a long call of native code, such as
    one function of SQLite. This thread may come late: the handler may have run before. Several
    signals may have one run of the handler.
    """
    before = len(handled)
    while numbers := os.read(pipe, MOST_SIGNALS):
        until = time.monotonic() + HARD_SECONDS
        handler = signal.getsignal(numbers[0])
        if getattr(handler, "__func__", handler) in (handle_signal, Interruptions._handle):
            while len(handled) == before:
                if time.monotonic() > until:
                    _end(_ended_by(numbers[0]))
                time.sleep(0.05)
        before = len(handled)
        if select.select([pipe], [], [], 0)[0]:  # signals that came meanwhile have been handled
            os.read(pipe, MOST_SIGNALS)


def end_after(seconds: float, error: DynabroError) -> threading.Timer:
    """Return a timer, started, that ends the process with an error unless it is cancelled: a call
    of native code cannot be stopped in another way.
    """
    timer = threading.Timer(seconds, _end, (error,))
    timer.daemon = True  # Python waits at its end for any other thread
    timer.start()
    return timer


def handle_signal(number: int, _frame: FrameType | None) -> None:
    """Handle a signal while no run is in progress.

    Raises:
        KeyboardInterrupt: After Ctrl-C.
        PreemptedError: After any other signal.
    """
    handled.append(number)
    arrived.append(number)
    check_arrived()


def check_arrived() -> None:
    """Raise the error of a signal that ``handle_signal`` has handled, if any; errors as there."""
    if not arrived:
        return
    if arrived[0] == signal.SIGINT:
        raise KeyboardInterrupt
    raise PreemptedError("terminated; no run was in progress; run the command again")


class Interruptions:
    """Note the first signal of ``USUAL`` in the context; raise ``Interrupted`` only within
    ``allowed`` and in ``check``.

    So no transaction and no start of a process is interrupted in the middle. A second signal,
    ``ONE_SECONDS`` later or more, ends the process at once; so does the first one after
    ``HARD_SECONDS``. Python handles a signal when a call of native code has returned. This changes
    nothing outside the main thread, where Python handles no signals, or if the program has its own
    handler.

    Attributes:
        signal: The signal that arrived; None without one.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._allowed = False
        self._came = 0.0
        self._end: threading.Timer | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruptions:
        check_arrived()
        if threading.current_thread() is threading.main_thread():
            for number, usual in USUAL.items():
                if signal.getsignal(number) in (usual, handle_signal):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._end is not None:
            self._end.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        handled.append(number)
        if self.signal is not None:
            if time.monotonic() - self._came >= ONE_SECONDS:
                _end(_ended_by(self.signal))
            return
        self.signal, self._came = number, time.monotonic()
        self._end = end_after(HARD_SECONDS, _ended_by(number))
        if self._allowed:
            raise Interrupted

    def check(self) -> None:
        """Raise Interrupted after a signal."""
        if self.signal is not None:
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
        if self.signal == signal.SIGINT:
            return InterruptedRunError(f"interrupted; {text}")
        return PreemptedError(f"terminated; {text}")


def _ended_by(number: int) -> DynabroError:
    """Return the error of a process that a signal ends at once. Worker processes end with it."""
    kind = InterruptedRunError if number == signal.SIGINT else PreemptedError
    return kind("ended at once; stored rows are intact; the same command resumes what it can")


def _end(error: DynabroError) -> NoReturn:
    """End this process now."""
    # in a separate thread, sys.exit ends that thread only; and print could wait for a lock of the
    # stream that the interrupted thread holds
    with contextlib.suppress(OSError):
        cursor = SHOW_CURSOR if sys.stderr.isatty() else ""
        os.write(2, f"{cursor}dynabro: {error}\n".encode())
    os._exit(error.exit_code)
