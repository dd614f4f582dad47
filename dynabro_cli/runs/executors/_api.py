"""Common parts of executors of many runs: options, outcomes, and listeners."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from dynabro_cli.core.errors import RunError

# they load all components and SQLAlchemy, and a worker must be under its parent's control before
if TYPE_CHECKING:
    from dynabro_cli.core.events import Event, SaveAt
    from dynabro_cli.experiment.resolve import Run
    from dynabro_cli.runs.store.write.standing import Rerun

Status = Literal["finished", "diverged", "failed", "stored", "interrupted", "pruned"]


CHECKPOINT_SECONDS = 60.0
PREEMPTING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that clusters, batch systems and lost terminals send before they end a process."""


@dataclass(frozen=True)
class Options:
    """Options of making runs. None of these affects results, except threads, device and compile,
    which may change rounding.

    Attributes:
        executor: The back end that makes the runs, as ``backends`` names it.
        address: The address of a cluster, for a back end that has one.
        jobs: Runs at a time, one process each; 0 to make them in this process; None for the number
            of usable cores, or as many as share the GPUs.
        threads: CPU threads of each process; None to share the cores among the processes.
        most_threads: True if ``threads`` is a share of the cores; a small model then takes one
            thread.
        device: ``cpu``, ``cuda:N``, or ``cuda`` for all GPUs; ``auto`` for all GPUs, or the CPU for
            small models and on machines without a GPU.
        jobs_per_gpu: Runs that share a GPU; None to decide by cores, memory and the size of the
            runs.
        data_dir: Folder of data sets; None for the usual folder.
        compile: ``auto``, ``on`` or ``off``.
        timeout: Time limit of a run in seconds, without process start-up; None for no limit.
        max_retries: Number of retries of a run whose process died.
        retry_failed: True to repeat runs that are stored as failed.
        force: True to make runs whose estimated memory exceeds the free memory.
        rerun: Stored runs to repeat: ``none``, ``changed`` (a component has changed) or ``all``.
        fail_fast: True if the first failure ends everything.
        sweep: The name that the runs are stored under.
        sweep_text: The YAML of the sweep, to be stored; an empty text stores nothing.
        tags: Tags of the runs that are made.
        note: A note on them; None for none.
        shard: The part of the sweep that is made, such as ``2/4``; None for the whole.
        checkpoint_every: Seconds between two checkpoints of a run.
        weights: When a run sends its model.
        log: Trackers that get the evaluations of the runs that are made, as ``--log`` has them.
    """

    executor: str = "local"
    address: str | None = None
    jobs: int | None = None
    threads: int | None = None
    most_threads: bool = False
    device: str = "auto"
    jobs_per_gpu: int | None = None
    data_dir: Path | None = None
    compile: str = "auto"
    timeout: float | None = None
    max_retries: int = 0
    retry_failed: bool = False
    rerun: Rerun = "none"
    force: bool = False
    fail_fast: bool = False
    sweep: str | None = None
    sweep_text: str = ""
    tags: tuple[str, ...] = ()
    note: str | None = None
    shard: str | None = None
    checkpoint_every: float = CHECKPOINT_SECONDS
    weights: SaveAt = "never"
    log: tuple[str, ...] = ()

    @property
    def sweep_row(self) -> str | None:
        """The name of the sweep's row in ``sweeps``: each shard has its own rows and reruns."""
        return self.sweep if self.shard is None else f"{self.sweep} {self.shard}"


@dataclass(frozen=True)
class Failure:
    """Failure of a run.

    Attributes:
        reason: One line.
        details: The text to store.
        expected: True if it was raised on purpose; such an error before the first event means that
            the run cannot start here.
        exit_code: The exit code of a command that makes this run alone.
        doubtful: True if its earlier numbers may be wrong.
        occupied: True if others use the memory of its GPU.
    """

    reason: str
    details: str
    expected: bool
    exit_code: int = RunError.exit_code
    doubtful: bool = False
    occupied: bool = False


class Outcome(NamedTuple):
    """Outcome of a run.

    Attributes:
        run: The run.
        status: ``finished`` or ``diverged``: it ran now and has a result. ``stored``: there was a
            result before. ``failed``: it failed now, or before without a retry. ``interrupted``: it
            was stopped, or not started because of ``fail_fast``. ``pruned``: a search has ended it
            early.
        message: The reason of a failure, or None.
        failure: The failure, if it failed now.
    """

    run: Run
    status: Status
    message: str | None
    failure: Failure | None = None


class Sharing(NamedTuple):
    """The part of a device that a run takes. Runs on a GPU at the same time have the same value of
    ``fills``.

    Attributes:
        gpu: True if such a run computes on a GPU.
        fills: True if its kernels fill a GPU.
        most: Number of such runs on a GPU at a time.
        fewer: Smaller numbers, of GPUs with less memory.
    """

    gpu: bool
    fills: bool = False
    most: int = 1
    fewer: tuple[tuple[str, int], ...] = ()

    def most_on(self, device: str) -> int:
        """Return the number of such runs on a GPU at a time."""
        return dict(self.fewer).get(device, self.most)


ON_CPU = Sharing(False)


class Listener(Protocol):
    """Receiver of events in the thread of ``make_all``; a slot is a number from 0 below the number
    of processes.

    Nothing is called any more after a signal, an error, or a failure under ``fail_fast`` has ended
    everything.
    """

    def started(self, slot: int, run: Run) -> None:
        """A process has started ``run``; after a crash this is called again for the same run."""
        ...

    def event(self, slot: int, run: Run, event: Event) -> None:
        """``event`` of ``run`` has been recorded; the last one, ``Finished`` or ``Diverged``, comes
        before ``ended``.
        """
        ...

    def ended(self, slot: int, outcome: Outcome) -> None:
        """No more events of the run follow. A run that needs no process, such as a stored one, ends
        without a start.
        """
        ...

    def waiting(self, runs: int) -> None:
        """Only ``runs`` runs are left, which are in progress in other processes; they are waited
        for.
        """
        ...
