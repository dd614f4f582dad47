"""Runs that print, for a worker process; or one such run in this process: ``python talkative.py LOG
SEED``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dynabro_cli.core import events
from dynabro_cli.runs.executors.worker import Request, answer
from tests.runs.store.made import evaluated, finished, rounds, started


def serve(connection: Connection) -> None:
    """Make runs that print; the one with seed 1 crashes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer(connection, simulate)


def simulate(request: Request, _: Callable[[], bool]) -> Iterator[events.Event]:
    yield started(request.key, **request.spec)
    talk()
    yield rounds(0, 3)
    if request.spec["seed"] == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    yield evaluated(4)
    yield finished(4)


def talk() -> None:
    """Print in every way that there is."""
    print("from Python")
    warnings.warn("from a warning", stacklevel=1)
    for number, text in (
        (1, b"from native code\n"),
        (2, b"from native code's errors \x1b[2J\xff\n"),
    ):
        # as most native code does not look whether it could be written
        with contextlib.suppress(OSError):
            os.write(number, text)
    print("a surrogate \ud800", file=sys.stderr)
    print("no end of the line", end="")


class Pipe:
    """A parent that wants one run, and hears that it is claimed."""

    def __init__(self, *answers: object) -> None:
        self._answers = iter(answers)
        self.sent: list[Any] = []

    def send(self, message: object) -> None:
        self.sent.append(message)

    def recv(self) -> object:
        try:
            return next(self._answers)
        except StopIteration:
            raise EOFError from None

    def poll(self) -> bool:
        return False


def main() -> None:
    log, seed = Path(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(2)
    spec = {"seed": seed}
    request = Request(
        spec=spec, key="ab" * 32, data_dir=None, device="cpu", threads=1, compile="off", log=log
    )
    pipe = Pipe(request, True)
    answer(pipe, simulate)  # type: ignore[arg-type]
    print(*(type(message).__name__ for message in pipe.sent))
    print("after", file=sys.stderr)


if __name__ == "__main__":
    main()
