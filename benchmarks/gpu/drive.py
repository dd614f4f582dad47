"""Run the steps in separate processes, within a time limit, and write the results after every check."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from benchmarks.gpu.report import tables
from benchmarks.gpu.steps import STEPS, How, Step, fetching, here, missing

RESERVE = 6.0
"""Seconds at the end that are reserved for ending a process and writing the files."""
POLITE = 3.0
"""Seconds that a process has to end itself after SIGTERM, because it may have started a service."""
START = 45.0
"""Time limit of a process before its first check: torch and the driver are loaded, the first time from a cold disk."""
LEAST = 15.0
"""Smallest number of seconds that must be left for a step to begin."""
GRACE = 10.0
"""Seconds between two checks."""

STARTING = "start"
"""Name of the outcome of a process that did not reach its first check."""

NO_GPU = {"state": "left out", "error": "no GPU"}
"""Outcome of a step without a GPU."""

Results = dict[str, dict[str, dict[str, Any]]]


class FolderError(Exception):
    """The folder has results of another command."""


def _in_words(how: How) -> str:
    return f"--device {how.device}{' --tiny' if how.tiny else ''}"


class Book:
    """The file ``gpu.json`` of a folder, and ``gpu.md`` beside it: all results so far."""

    def __init__(self, folder: Path, how: How) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._json, self._tables = folder / "gpu.json", folder / "gpu.md"
        self.results: Results = {}
        self._head = {"how": asdict(how), "missing": missing()}
        if self._json.exists():
            known = json.loads(self._json.read_text(encoding="utf-8"))
            before = How(**known["how"])
            if (before.gpu, before.tiny) != (how.gpu, how.tiny):
                raise FolderError(f"{self._json}: has results of {_in_words(before)}. Try: another folder")
            self.results = known["results"]

    def known(self, step: str) -> set[str]:
        """Return the names of the step's checks that have an outcome."""
        return set(self.results.get(step, {}))

    def write(self, step: str, check: str, outcome: dict[str, Any]) -> None:
        """Add the outcome of a check, and write the files."""
        self.results.setdefault(step, {})[check] = outcome
        self.save()

    def forget(self, *steps: str, all_of_them: bool = False) -> None:
        """Drop the outcomes of the steps that are not ``done``, or all outcomes, so that their checks are repeated."""
        for step in steps:
            checks = self.results.get(step, {}).items()
            self.results[step] = {name: found for name, found in checks if found["state"] == "done" and not all_of_them}

    def whole(self, step: str) -> bool:
        """Return True if every outcome of the step is ``done``."""
        return all(outcome["state"] == "done" for outcome in self.results.get(step, {}).values())

    @property
    def no_gpu(self) -> bool:
        """True if a GPU was requested and does not exist."""
        return any(found.get("error") == NO_GPU["error"] for found in self.results.get("machine", {}).values())

    def save(self) -> None:
        """Write both files, each by a rename, so that no file is ever incomplete."""
        whole = self._head | {
            "written": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
            "results": self.results,
        }
        for path, text in ((self._json, json.dumps(whole, indent=1)), (self._tables, tables(whole))):
            beside = path.with_name(f".{path.name}")
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)


def _say(line: str) -> None:
    print(line, flush=True)


def measure(
    folder: Path,
    how: How,
    minutes: float,
    *,
    only: Sequence[str] = (),
    again: bool = False,
    anew: bool = False,
    say: Callable[[str], None] = _say,
    steps: Sequence[Step] = STEPS,
) -> bool:
    """Make as much of the steps as fits into the time; return True if nothing is left to do.

    Args:
        folder: Folder for ``gpu.json``, ``gpu.md`` and ``log.txt``; results in the first file are not made again.
        how: Place and size of the checks.
        minutes: The time limit.
        only: Names of steps; empty for all.
        again: Repeat the checks that have failed.
        anew: Repeat everything.
        say: Prints a line.
        steps: The steps.
    """
    end = time.monotonic() + 60 * minutes - RESERVE
    book = Book(folder, how)
    if again or anew:
        book.forget(*book.results, all_of_them=anew)
    if missing():
        say(f"missing: {' '.join(missing())}; steps that need them are left out. To get them, with a network and then here:")
        for line in fetching(missing()):
            say(f"  {line}")
    complete = True
    with _stoppable():
        for step in steps:
            if only and step.name not in only:
                continue
            lacking = [name for name in step.needs if not here(name)]
            if lacking:
                book.write(step.name, "all", {"state": "left out", "error": f"needs {', '.join(lacking)}"})
                continue
            for place in ("all", STARTING):
                book.results.get(step.name, {}).pop(place, None)
            if step.part and book.no_gpu:
                book.write(step.name, "all", NO_GPU)
                continue
            if step.part == 0:
                book.forget(step.name, all_of_them=not book.whole(step.name))
            complete &= _whole_step(step, how, book, folder, end, say)
            if step.part == 0 and book.no_gpu:
                say("no GPU: all other steps are left out")
            elif step.part == 0 and not book.whole(step.name):
                say("the device does not compute: nothing else is tried")
                complete = False
                break
    book.save()
    say(f"{'complete' if complete else 'more is left: the same command goes on'}: {folder / 'gpu.json'}, {folder / 'gpu.md'}")
    return complete


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Exit on SIGTERM and SIGHUP like on an error, so that the process of a step is also ended."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _whole_step(step: Step, how: How, book: Book, folder: Path, end: float, say: Callable[[str], None]) -> bool:
    """Start the step's process, again after each lost process, until no check is left or the time is up."""
    until = min(end, time.monotonic() + step.seconds)
    while (left := until - time.monotonic()) > 0:
        if end - time.monotonic() < LEAST and left < step.seconds:
            return False
        with (folder / "log.txt").open("ab") as log:
            if _process(step, how, book, until, log, say):
                return True
    return False


def _process(step: Step, how: How, book: Book, until: float, log: IO[bytes], say: Callable[[str], None]) -> bool:
    """Make the remaining checks of a step in one process; return True if the process reached its end."""
    command = [sys.executable, "-m", "benchmarks.gpu.child", step.name, step.place, json.dumps(asdict(how))]
    log.write(f"--- {step.name}\n".encode())
    log.flush()
    child = subprocess.Popen(
        [*command, json.dumps(sorted(book.known(step.name)))],
        stdin=subprocess.PIPE,  # the process ends if this end is closed, and so if this process is killed
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    begun, before = None, time.monotonic()
    limit = min(until, before + START + (0 if how.gpu else 60))
    lines = _Lines(child)
    try:
        while True:
            line = lines.next(limit)
            if line is None:
                break
            message = json.loads(line)
            now = time.monotonic()
            if message["kind"] in ("end", "lost"):
                return bool(message["kind"] == "end")  # the last check has its outcome; the next one needs a new process
            if message["kind"] == "begin":
                begun, before, limit = message["check"], now, min(until, now + message["seconds"])
                continue
            outcome = message["outcome"] | {"seconds": round(now - before, 3)}
            book.write(step.name, str(begun), outcome)
            known = str(outcome.get("error") or outcome.get("graphs") or "").splitlines()
            why = f" ({known[0]})" if known else ""
            say(f"{step.name}: {begun}: {outcome['state']}{why}")
            begun, before, limit = None, now, min(until, now + GRACE)
    finally:
        code = _end(child, 0.5 if lines.late else 2.0)
    name = begun or STARTING
    if lines.late and limit >= until:
        return False  # the step's time is up, not the check's: the next call begins with this check
    text = f"longer than {time.monotonic() - before:.0f} s" if lines.late else f"the process ended with code {code}"
    book.write(step.name, name, {"state": "hung" if lines.late else "crashed", "error": text})
    say(f"{step.name}: {name}: {text}")
    return begun is None  # a process that does not start is not started again


class _Lines:
    """Lines of a process's output, each awaited for a limited time; other lines are ignored."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._pipe = child.stdout
        self._left = b""
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._pipe, selectors.EVENT_READ)  # type: ignore[arg-type]
        self.late = False

    def next(self, limit: float) -> str | None:
        """Return the next message; None if the process has ended or the time is up."""
        while True:
            line, found, rest = self._left.partition(b"\n")
            if found:
                self._left = rest
                if line.startswith(b'{"kind"'):
                    return line.decode()
                continue
            left = limit - time.monotonic()
            if left <= 0 or not self._ready.select(left):
                self.late = True
                return None
            more = os.read(self._pipe.fileno(), 1 << 16)  # type: ignore[union-attr]
            if not more:
                return None
            self._left += more


def _end(child: subprocess.Popen[bytes], patience: float) -> int:
    """End the process with all its children, unless it ends itself, and return its exit code."""
    for number, seconds in ((None, patience), (signal.SIGTERM, POLITE), (signal.SIGKILL, 0.0)):
        with contextlib.suppress(ProcessLookupError):
            if number is not None:
                os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            if seconds:
                child.wait(seconds)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    return child.wait()
