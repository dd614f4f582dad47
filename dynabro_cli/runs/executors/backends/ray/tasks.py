"""The back end of a Ray cluster: tasks, the driver's side of their mailbox, and the size of the
cluster.

A task is one attempt at a run, and Ray must not repeat it: a new attempt gets the last checkpoint,
and late messages of the old one are dropped. Tasks that fit nowhere wait in Ray, unclaimed.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import ray

from dynabro_cli.core.errors import DisconnectedError, last_line
from dynabro_cli.core.events import Started
from dynabro_cli.runs.executors.backend import Ended, Message
from dynabro_cli.runs.executors.backends.ray.node import make
from dynabro_cli.runs.executors.backends.ray.shares import Share
from dynabro_cli.runs.executors.worker import MemoryCheck, Request

TAKE_SECONDS = 1.0
"""Seconds for which the driver's thread waits for messages before it looks at new tasks."""
MEASURE_SECONDS = 5.0
"""Pause between two measurements of the cluster's size."""


class RayTasks:
    """Tasks in a Ray cluster: a ``Backend``.

    A place keeps its task until the task has ended, which is later than the run's end. Otherwise
    Ray would start another process for the next task.

    Args:
        mailbox: The actor.
        share: Resources of a run.
        entry: The function on the nodes that returns the function that makes a run, as
            ``module:name``.
        jobs: Most runs at a time; None for the number that fits the cluster.
    """

    maker = "task"
    memory_check: MemoryCheck = "all"
    checkpoint_resets_retries = True

    def __init__(self, mailbox: Any, share: Share, entry: str, jobs: int | None) -> None:
        self._mailbox, self._entry, self._jobs = mailbox, entry, jobs
        # GPU tasks would have a process each by default; one that finds itself on another GPU says
        # so
        self._task = ray.remote(
            num_cpus=share.cpus, num_gpus=share.gpus, max_calls=0, max_retries=0
        )(make)
        self._attempts = itertools.count()
        self._tasks: dict[int, tuple[int, Any]] = {}  # place -> attempt, task
        self._places: dict[int, int] = {}  # attempt -> place
        self._inbox = Inbox(mailbox, share)

    @property
    def capacity(self) -> int:
        """``jobs``, or the number of runs that fit the cluster now."""
        return self._jobs or max(1, self._inbox.capacity)

    def free(self, place: int) -> bool:
        """Return True if there is no task here."""
        return place not in self._tasks

    def start(self, place: int) -> bool:
        """Return True: Ray starts the processes."""
        return True

    def send(self, place: int, request: Request) -> None:
        """Submit a task, whose log the driver writes."""
        attempt = next(self._attempts)
        kind = self._task if request.device != "cpu" else self._task.options(num_gpus=0)
        task = kind.remote(self._mailbox, attempt, replace(request, log=None), self._entry)
        self._tasks[place], self._places[attempt] = (attempt, task), place
        self._inbox.watch(task, attempt)

    def answer(self, place: int, ours: bool) -> None:
        """Answer ``Started``."""
        if place in self._tasks:
            self._mailbox.answer.remote(self._tasks[place][0], ours)

    def wait(self, seconds: float | None) -> None:
        """Wait for a message, or for the next measurement of the cluster."""
        self._inbox.wait(MEASURE_SECONDS if seconds is None else min(seconds, MEASURE_SECONDS))

    def collect(self) -> Iterator[tuple[int, Message | Ended]]:
        """Yield what has arrived of attempts that are not given up."""
        for item in self._inbox.collect():
            place = self._places.get(item.attempt)
            if place is None:
                if isinstance(item.message, Started):
                    self._mailbox.answer.remote(item.attempt, False)
            elif item.message is not None:
                yield place, item.message
            else:
                self._forget(place)
                yield (
                    place,
                    Ended(
                        in_words(item.error),
                        counts=not isinstance(item.error, ray.exceptions.NodeDiedError),
                    ),
                )

    def leave(self, places: Collection[int]) -> None:
        """Let every run hand over a checkpoint and end."""
        if places:
            self._mailbox.leave.remote()

    def kill(self, place: int) -> None:
        """End the task at once; later messages are dropped."""
        if place in self._tasks:
            attempt, task = self._tasks[place]
            with contextlib.suppress(Exception):
                self._mailbox.answer.remote(attempt, False)
                ray.cancel(task, force=True)
            self._forget(place)

    def reap(self, place: int) -> Iterator[Message]:
        """Yield nothing, and wait for nothing."""
        return iter(())

    def _forget(self, place: int) -> None:
        del self._places[self._tasks.pop(place)[0]]

    def close(self) -> None:
        """End the mailbox, and all tasks with it."""
        self._inbox.close()
        with contextlib.suppress(Exception):
            ray.kill(self._mailbox)


class Item(NamedTuple):
    """A message of an attempt, or, with None, the end of its task and its error."""

    attempt: int
    message: Message | None
    error: Exception | None = None


class Inbox:
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
        items = [self._items.popleft() for _ in range(len(self._items))]
        if not items and self._error is not None:
            raise DisconnectedError(
                f"the connection to the Ray cluster is lost ({in_words(self._error)}); what "
                "was stored before is intact; the "
                "same command resumes"
            ) from self._error
        self._room.set()
        return items

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
        items = [Item(attempt, message) for attempt, several in messages for message in several]
        return items + [Item(tasks[task], None, _error_of(task)) for task in ended]


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
        return "was killed, because its node ran out of memory"
    if isinstance(error, ray.exceptions.NodeDiedError):
        return "was lost with its node"
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return "was lost, because its process died; Ray's logs on its node may say why"
    return f"ended with {last_line(error) or type(error).__name__}"
