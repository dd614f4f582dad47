"""The driver's side of the mailbox: messages from a Ray cluster, in order, and the size of the cluster."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, NamedTuple

import ray

from dynabro_cli.errors import DisconnectedError
from dynabro_cli.executors.ray_node import Message
from dynabro_cli.executors.ray_share import Share

TAKE_SECONDS = 1.0
"""Seconds for which the driver's thread waits for messages before it looks at new tasks."""
MEASURE_SECONDS = 5.0
"""Pause between two measurements of the cluster's size."""


class Item(NamedTuple):
    """A message of an attempt, or, with None, the end of its task and its error."""

    attempt: int
    message: Message | None
    error: Exception | None = None


class Post:
    """Receive messages from the cluster in a thread, so that no signal interrupts Ray's own code.

    Args:
        mailbox: The actor.
        share: Resources of a run.

    Attributes:
        capacity: Number of runs that fit the cluster; measured repeatedly.
    """

    def __init__(self, mailbox: Any, share: Share) -> None:
        self._mailbox, self._share = mailbox, share
        self.capacity = share.fit(ray.nodes())
        self._measured = time.monotonic()
        self._tasks: dict[Any, int] = {}
        self._lock = threading.Lock()
        self._items: deque[Item] = deque()
        self._news, self._room = threading.Event(), threading.Event()
        self._closed = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True, name="dynabro ray")
        self._thread.start()

    def watch(self, task: Any, attempt: int) -> None:
        """Report the end of ``task``, after all its messages."""
        with self._lock:
            self._tasks[task] = attempt

    def wait(self, seconds: float | None) -> None:
        """Wait for a message for the given time."""
        self._news.wait(seconds)

    def collect(self) -> list[Item]:
        """Return the messages that have arrived, in order.

        Raises:
            DisconnectedError: The connection is lost.
        """
        self._news.clear()
        found = [self._items.popleft() for _ in range(len(self._items))]
        if not found and self._error is not None:
            raise DisconnectedError(
                f"the connection to the Ray cluster is lost ({in_words(self._error)}); what was stored before is intact; the "
                "same command resumes"
            ) from self._error
        self._room.set()
        return found

    def close(self) -> None:
        """Receive nothing more."""
        self._closed = True
        self._room.set()
        self._thread.join(TAKE_SECONDS)

    def _serve(self) -> None:
        try:
            while not self._closed:
                self._room.clear()
                items = self._fetch()
                if time.monotonic() - self._measured >= MEASURE_SECONDS:
                    self._measured, self.capacity = time.monotonic(), self._share.fit(ray.nodes())
                if items:
                    self._items.extend(items)
                    self._news.set()
                    self._room.wait()  # until these have been collected
        except Exception as error:
            self._error = error
            self._news.set()

    def _fetch(self) -> list[Item]:
        """Wait for messages, or for a task's end, or for ``TAKE_SECONDS``."""
        with self._lock:
            tasks = dict(self._tasks)
        parcels = self._mailbox.take.remote(TAKE_SECONDS)
        done, _ = ray.wait([parcels, *tasks], num_returns=1)
        if parcels not in done:
            self._mailbox.poke.remote()
        ended, _ = ray.wait(list(tasks), num_returns=len(tasks), timeout=0) if tasks else ([], [])
        messages = list(ray.get(parcels))
        if ended:  # their earlier messages have arrived
            messages += ray.get(self._mailbox.take.remote(0))
        with self._lock:
            for task in ended:
                del self._tasks[task]
        found = [Item(attempt, message) for attempt, several in messages for message in several]
        return found + [Item(tasks[task], None, _error_of(task)) for task in ended]


def _error_of(task: Any) -> Exception | None:
    try:
        ray.get(task)
    except Exception as error:
        return error
    return None


def in_words(error: Exception | None) -> str:
    """Describe the end of a task, for a sentence."""
    if error is None:
        return "ended without a result"
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "was killed, as its node ran out of memory"
    if isinstance(error, ray.exceptions.NodeDiedError):
        return "was lost with its node"
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return "was lost, as its process died; Ray's logs on its node may say why"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"ended with {lines[-1] if lines else type(error).__name__}"
