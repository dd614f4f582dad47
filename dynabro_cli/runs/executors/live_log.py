"""Log runs while they are made: events go to one process for each tracker, which may fail or hang
without harm to the runs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from dynabro_cli.core.errors import first_line
from dynabro_cli.core.events import Diverged, Evaluated, Event, Finished, Started
from dynabro_cli.core.machine.search_path import search_path
from dynabro_cli.experiment.key import KEY_DIGITS
from dynabro_cli.experiment.label import rule_of
from dynabro_cli.runs.executors._api import PREEMPTING, Listener, Options, Outcome
from dynabro_cli.runs.store.read.frames import parameters_of
from dynabro_cli.runs.trackers import CURVES, Described, fields_of, finite

if TYPE_CHECKING:
    from dynabro_cli.experiment.resolve import Run

PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; from dynabro_cli.runs.executors.live_log import "
    "serve; serve(*sys.argv[1:3])"
)
LIMIT = 60
"""Most seconds of a call of a tracker, and of the wait for it at the end of all runs."""
LEAVE_SECONDS = 1.0
"""The wait after a signal. The process writes the rest within ``LIMIT``."""
ENDS = {"failed": "FAILED", "interrupted": "KILLED", "pruned": "KILLED"}
"""States in trackers of runs that end without a result."""
MOST_REASON = 4000
"""Most bytes of a reason."""


class Tracker:
    """A process that writes to a tracker; it is started by the first message.

    Messages wait here while the pipe is full, so that nothing waits for the tracker. What goes
    wrong is one warning, after which messages are dropped.

    Args:
        text: A value of ``--log``.
    """

    def __init__(self, text: str) -> None:
        self._tool, _, self._place = text.partition(":")
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting = bytearray()
        self._failed = False

    def send(self, *message: object) -> None:
        """Send a message of JSON."""
        if self._failed:
            return
        self._waiting += json.dumps(message, default=str).encode() + b"\n"
        if self._process is None:
            self._start()
        self.push()

    def push(self) -> None:
        """Write waiting messages, as far as there is room; see if the process has ended."""
        if self._process is None or self._failed:
            return
        if self._process.poll() is not None:
            self._fail(self._reason(self._process))
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # the next look finds its end
            while self._waiting:
                del self._waiting[: os.write(self._pipe, self._waiting)]

    def close(self, seconds: float, *, leave: bool) -> None:
        """Wait for the process to write what it has; then end it, or leave it to its own limit."""
        if self._process is None:
            return
        until = time.monotonic() + seconds
        while self._waiting and not self._failed and (left := until - time.monotonic()) > 0:
            select.select([], [self._pipe], [], min(left, 0.1))
            self.push()
        os.close(self._pipe)
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            if not leave:
                self._process.kill()
                self._process.wait()
            if self._waiting or not leave:
                self._fail(f"it did not answer within {seconds:g} s")
        if self._process.returncode:
            self._fail(self._reason(self._process))

    def _start(self) -> None:
        self._waiting[:0] = json.dumps(self._place).encode() + b"\n"
        words = [sys.executable, "-c", PROGRAM, self._tool, str(LIMIT), *search_path()]
        reading, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self._process = subprocess.Popen(
                words,
                stdin=reading,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the runs
            )
        except OSError as error:
            self._fail(str(error.strerror))
        finally:
            os.close(reading)

    def _reason(self, process: subprocess.Popen[bytes]) -> str:
        """Return why the process has ended, without passwords and tokens of the place."""
        if process.returncode == -signal.SIGALRM:
            return f"it did not answer within {LIMIT} s"
        said = b""
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)  # a tool's own process may have it
            said = process.stdout.read(MOST_REASON) or b""
        reason = said.decode(errors="replace") or f"its process ended with {process.returncode}"
        for secret in re.findall(r"//([^/@]+)@|[?&][^=]+=([^&]+)", self._place):
            for word in (*secret, secret[0].partition(":")[2]):
                reason = reason.replace(word, "***") if word else reason
        return reason

    def _fail(self, reason: str) -> None:
        if not self._failed:
            warnings.warn(f"{self._tool}: the log is incomplete ({reason})", stacklevel=2)
        self._failed = True
        self._waiting.clear()


class Logged:
    """A listener that passes events on to another one, and to trackers.

    Args:
        listener: The other one.
        options: The options of the runs.
    """

    def __init__(self, listener: Listener, options: Options) -> None:
        self._listener, self._options = listener, options
        self._trackers = [Tracker(text) for text in options.log]

    def close(self) -> None:
        """Wait for the trackers; after an error, such as Ctrl-C, hardly."""
        failed = sys.exception() is not None
        for tracker in self._trackers:
            tracker.close(LEAVE_SECONDS if failed else LIMIT, leave=failed)

    def started(self, slot: int, run: Run) -> None:
        """Pass it on."""
        self._listener.started(slot, run)

    def event(self, slot: int, run: Run, event: Event) -> None:
        """Pass the event on, and send what trackers store."""
        self._listener.event(slot, run, event)
        now = time.time()
        if isinstance(event, Started):
            row = event.record | {"rule": rule_of(event.record)}
            described = Described(
                run.key[:KEY_DIGITS],
                self._options.sweep or "runs",
                fields_of(row | parameters_of(row["spec"])),
                self._options.tags,
                self._options.note or "",
                now,
            )
            self._send("begin", run.key, described, event.resumed is not None)
        elif isinstance(event, Evaluated):
            numbers = {name: getattr(event, name) for name in CURVES} | dict(event.metrics)
            self._send("points", run.key, [(event.budget, finite(numbers))], now)
        elif isinstance(event, Finished | Diverged):
            # a run that diverged has no final score
            final = (
                {}
                if isinstance(event, Diverged)
                else {f"final_{name}": getattr(event, name) for name in ("accuracy", "loss", "gap")}
            )
            self._send("end", run.key, finite(final), now, "FINISHED")
        else:
            for tracker in self._trackers:
                tracker.push()

    def ended(self, slot: int, outcome: Outcome) -> None:
        """Pass it on, and close a run that has no result."""
        self._listener.ended(slot, outcome)
        if outcome.status in ENDS:
            self._send("end", outcome.run.key, {}, time.time(), ENDS[outcome.status])

    def waiting(self, runs: int) -> None:
        """Pass it on."""
        self._listener.waiting(runs)

    def _send(self, *message: object) -> None:
        for tracker in self._trackers:
            tracker.send(*message)


def serve(tool: str, limit: str) -> None:
    """Write what arrives on standard input to a tracker; the main function of a tracker's process.

    A call that takes too long ends the process, by the system's default for SIGALRM. The end of the
    input, also of a command that was killed, closes all runs.

    Args:
        tool: The tool.
        limit: Most seconds of a call.
    """
    for number in (signal.SIGINT, *PREEMPTING):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the parent may ignore it
    answer = os.dup(1)
    os.dup2(2, 1)  # what libraries print
    place, logs = json.loads(sys.stdin.readline()), dict[str, Any]()
    try:
        for line in sys.stdin:
            signal.alarm(int(limit))
            _handle(tool, place, logs, *json.loads(line))
            signal.alarm(0)
        signal.alarm(int(limit))
        for log in logs.values():
            log.end({}, time.time(), "KILLED")
    except BaseException as error:  # the tools have various errors; SystemExit, too
        os.write(answer, first_line(error).encode()[:MOST_REASON] or type(error).__name__.encode())
        os._exit(1)


def _handle(
    tool: str, place: str, logs: dict[str, Any], kind: str, key: str, *message: Any
) -> None:
    log = logs.get(key)
    if kind == "begin":
        if log is not None:  # its process was killed, and the run is made again
            log.end({}, time.time(), "KILLED")
        run, resumed = message
        module = importlib.import_module(f"dynabro_cli.runs.trackers.{tool}")
        logs[key] = module.begin(Described(*run), place, resumed=resumed)
    elif log is not None and kind == "points":
        log.points(*message)
    elif log is not None:
        del logs[key]
        log.end(*message)
