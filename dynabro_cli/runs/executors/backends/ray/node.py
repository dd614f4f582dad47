"""The part of a sweep that runs in a Ray cluster: the tasks that make its runs, and the mailbox
between them and the driver.

A run sends its events in calls of an actor, the mailbox. No node can call the driver of a
``ray://`` address, and Ray repeats lost items of a generator from the first one, assuming they are
the same. Checkpoints travel with the events, and through Ray's object store to the node where the
run resumes. So nodes and driver need no common folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import importlib
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import ray

from dynabro_cli import __version__
from dynabro_cli.core.events import Checkpointed, Diverged, Finished, Started
from dynabro_cli.core.machine.devices import spoilt
from dynabro_cli.runs.executors import worker
from dynabro_cli.runs.executors._api import Failure
from dynabro_cli.runs.executors.backend import Message, Printed
from dynabro_cli.runs.executors.worker import Begun, Left, Misplaced, Request, Simulate, messages

ORDER_SECONDS = 0.5
"""Largest age of the mailbox's last order when there is nothing to send."""
MOST_WAITING = 100
"""Most events on their way before the run waits for the driver."""
MOST_PRINTED = 1 << 16
"""Most bytes of output of a run per exchange."""

Order = Literal["go", "leave", "drop"]
"""Order to a run: continue; hand over a checkpoint and end; or end at once, because the driver no
longer waits for it.
"""


IMPORTANT = (Begun, Started, Checkpointed, Finished, Diverged, Failure, Left, Misplaced)


class Mailbox:
    """An actor between the runs of one sweep and its driver, whose calls wait without a thread.

    A run's call returns when the driver has taken its messages, so that runs wait for a slow
    database.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Sequence[Message]]] = []
        self._deliveries: list[asyncio.Future[None]] = []
        self._arrived = asyncio.Event()
        self._claims: dict[int, asyncio.Future[None]] = {}
        self._dropped: set[int] = set()
        self._leaving = False

    async def version(self) -> str:
        """Return the version of dynabro here."""
        return __version__

    async def exchange(self, attempt: int, messages: Sequence[Message]) -> Order:
        """Take messages of an attempt at a run, and return its order; after ``Started`` the driver
        decides.
        """
        if messages and attempt not in self._dropped:
            delivery = asyncio.get_running_loop().create_future()
            self._waiting.append((attempt, messages))
            self._deliveries.append(delivery)
            self._arrived.set()
            await delivery
            if any(isinstance(message, Started) for message in messages):
                await self._claim(attempt)
        return "drop" if attempt in self._dropped else "leave" if self._leaving else "go"

    async def take(self, seconds: float) -> list[tuple[int, Sequence[Message]]]:
        """Return the messages that have arrived, by attempt; if there are none, wait for the given
        time.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), seconds)
        self._arrived.clear()
        messages, self._waiting = self._waiting, []
        deliveries, self._deliveries = self._deliveries, []
        for delivery in deliveries:
            delivery.set_result(None)
        return messages

    async def poke(self) -> None:
        """Let ``take`` return."""
        self._arrived.set()

    async def answer(self, attempt: int, ours: bool) -> None:
        """Answer ``Started``: the attempt may continue, or is given up."""
        if not ours:
            self._dropped.add(attempt)
        claim = self._claim(attempt)
        if not claim.done():
            claim.set_result(None)

    async def leave(self) -> None:
        """Let every run hand over a checkpoint and end."""
        self._leaving = True

    def _claim(self, attempt: int) -> asyncio.Future[None]:
        return self._claims.setdefault(attempt, asyncio.get_running_loop().create_future())


def make(mailbox: Any, attempt: int, request: Request, entry: str) -> None:
    """Make a run, and send its events to the mailbox.

    Args:
        mailbox: The actor.
        attempt: A number that no other attempt at a run has in this sweep.
        request: The run; the driver writes its log.
        entry: A function, as ``module:name``, that returns the function that makes a run; called
            once per process.
    """
    simulate = _simulation(entry)
    with _printing() as printed, contextlib.closing(_Sender(mailbox, attempt, printed)) as sender:
        if _misplaced() or spoilt(request.device):
            sender.send(Misplaced())
            os._exit(0)
        try:
            for message in messages(simulate, request, sender.asked):
                sender.send(_with_node(message))
            if isinstance(message, Failure) and not message.expected and worker.on_gpu():
                os._exit(1)  # an error on a GPU can leave the process unable to use it
        except _DroppedError:
            return
        finally:
            worker.tidy()


def _with_node(message: Any) -> Any:
    """Return a message; the node matters to an error such as missing data or another version."""
    if isinstance(message, Failure) and message.expected:
        return replace(message, reason=f"{message.reason} (on {platform.node()})")
    return message


class _DroppedError(BaseException):
    """The run has been given up; no failure of the run, so that nothing reports it."""


class _Sender:
    """The connection to the mailbox: a thread sends messages, one exchange after another, while the
    run continues.

    Args:
        mailbox: The actor.
        attempt: The number of the attempt.
        printed: A file with the output of the process.

    Attributes:
        order: The last answer of the mailbox.
    """

    def __init__(self, mailbox: Any, attempt: int, printed: int) -> None:
        self.order: Order = "go"
        self._mailbox, self._attempt, self._printed = mailbox, attempt, printed
        self._messages: list[Message] = []
        self._given = self._delivered = 0
        self._error: Exception | None = None
        self._closed = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="dynabro sender")
        self._thread.start()

    def send(self, message: Message) -> None:
        """Send a message; wait until important ones have arrived and few are on their way.

        Raises:
            _DroppedError: The run is given up.
        """
        with self._change:
            self._messages.append(message)
            self._given += 1
            wanted = self._given - (0 if isinstance(message, IMPORTANT) else MOST_WAITING)
            self._change.notify_all()
            self._change.wait_for(lambda: self._delivered >= wanted or self._over)
        self._check()

    def asked(self) -> bool:
        """Return True if the run must hand over a checkpoint and end; raise _DroppedError if it
        must end at once.
        """
        self._check()
        return self.order == "leave"

    def close(self) -> None:
        """Send nothing more."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join()

    @property
    def _over(self) -> bool:
        return self._error is not None or self.order == "drop"

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self.order == "drop":
            raise _DroppedError

    def _serve(self) -> None:
        """Send the messages; ask for orders if there was none for ``ORDER_SECONDS``."""
        while not self._closed and not self._over:
            with self._change:
                self._change.wait_for(lambda: self._messages or self._closed, ORDER_SECONDS)
                messages, self._messages = self._messages, []
            try:
                order = self._exchange(messages)
            except Exception as error:
                self._error = error
            else:
                self.order = order
            with self._change:
                self._delivered += len(messages)
                self._change.notify_all()

    def _exchange(self, messages: list[Message]) -> Order:
        sys.stdout.flush()
        text = os.read(self._printed, MOST_PRINTED).decode(errors="replace")
        printed = [Printed(text)] if text else []
        return cast(
            Order, ray.get(self._mailbox.exchange.remote(self._attempt, [*printed, *messages]))
        )


@functools.cache
def _simulation(entry: str) -> Simulate:
    """Return the function from ``entry``, which keeps what one run can leave for the next."""
    # a crash of native code leaves a trace in Ray's log of this process
    faulthandler.enable(os.dup(2))
    _first_gpus()
    module, _, name = entry.partition(":")
    return cast(Simulate, getattr(importlib.import_module(module), name)())


@functools.cache
def _first_gpus() -> str | None:
    """Return the GPUs that Ray gave this process for its first run."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def _misplaced() -> bool:
    """Return True if this process uses another GPU than Ray has given it now; CUDA keeps the GPUs
    that it has seen first.
    """
    return worker.on_gpu() and os.environ.get("CUDA_VISIBLE_DEVICES") != _first_gpus()


@contextlib.contextmanager
def _printing() -> Iterator[int]:
    """Redirect output to a file, to be read from the descriptor; the file is removed however the
    process ends.
    """
    descriptor, name = tempfile.mkstemp(prefix="dynabro-")
    try:
        with worker.printing_to(Path(name)):
            os.unlink(name)
            yield descriptor
    finally:
        os.close(descriptor)
