"""Interface of the scheduler to the places where runs are made: worker processes of this machine,
or tasks in a cluster.

A back end has places, numbered from 0. A place holds one process or task, or none. The scheduler
sends a run there, and takes messages from there until the process or task has ended. A back end
knows nothing of the queue, the database and retries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dynabro_cli.core.events import Event
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors._api import ON_CPU, Failure, Options, Sharing
from dynabro_cli.runs.executors.worker import Begun, Left, MemoryCheck, Misplaced, Request


@dataclass(frozen=True)
class Printed:
    """Text for the run's log, such as the output of its process."""

    text: str


@dataclass(frozen=True)
class Ended:
    """The process or task has ended, after all its messages.

    Attributes:
        how: The end in words, such as ``exited with code 1``.
        counts: False if its end before a run began says nothing about the next start, for example
            when a node was lost, or the process ended itself after a run.
    """

    how: str
    counts: bool = True


Message = Begun | Event | Failure | Left | Printed | Misplaced


class Backend(Protocol):
    """Interface of the scheduler to worker processes or a cluster.

    Attributes:
        maker: The maker of a run in messages, such as ``process``.
        memory_check: The memory that a process compares with a run's needs before it starts.
        checkpoint_resets_retries: True if the retries of a run are counted from its last
            checkpoint.
    """

    maker: str
    memory_check: MemoryCheck
    checkpoint_resets_retries: bool

    @property
    def capacity(self) -> int:
        """Most runs at a time, as far as known now."""
        ...

    def free(self, place: int) -> bool:
        """Return True if ``start`` may be called: nothing is there, or a process that makes no
        run.
        """
        ...

    def start(self, place: int) -> bool:
        """Have a process at a free place; return True if it can be sent a run now, False if the
        place is not free until then.

        Raises:
            RunError: The system does not start more processes.
        """
        ...

    def send(self, place: int, request: Request) -> None:
        """Send a run to a place where ``start`` has returned True. A death is reported by
        ``collect``.
        """
        ...

    def answer(self, place: int, ours: bool) -> None:
        """Answer ``Started``: the run continues there, or is given up."""
        ...

    def wait(self, seconds: float | None) -> None:
        """Wait for messages or an end for at most the given time; a signal may interrupt."""
        ...

    def collect(self) -> Iterator[tuple[int, Message | Ended]]:
        """Yield what has arrived, by place, in order; nothing from a place after ``reap``, even in
        the same iteration.

        Raises:
            DisconnectedError: The connection to the cluster is lost.
        """
        ...

    def leave(self, places: Collection[int]) -> None:
        """Ask the runs at these places to hand over a checkpoint and end, with ``Left``."""
        ...

    def kill(self, place: int) -> None:
        """End the process or task there without waiting; an empty place is ignored."""
        ...

    def reap(self, place: int) -> Iterator[Message]:
        """Wait for the end of a killed process; yield the messages that had arrived. Then the place
        is empty.
        """
        ...

    def close(self) -> None:
        """End everything."""
        ...


class Places(NamedTuple):
    """Places for the runs of a sweep.

    Attributes:
        options: The options, with jobs, threads and device resolved.
        devices: The devices, which the places share in turn. A run for the CPU may be at any place.
        most: Number of places.
        backend: The processes or the cluster; closed by the scheduler.
        notes: Lines about devices and the number of runs at a time, if these are not the usual
            ones.
        sharing: How a run shares its device.
        mps: Folder of CUDA's multi-process service; None without one.
    """

    options: Options
    devices: Sequence[str]
    most: int
    backend: Backend
    notes: Sequence[str] = ()
    sharing: Callable[[Run], Sharing] = lambda _: ON_CPU
    mps: str | None = None
