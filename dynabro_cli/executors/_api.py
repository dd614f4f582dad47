"""What executors of many runs share: how runs are to be made, what becomes of each, and who is told meanwhile."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from dynabro_cli.errors import DynabroError
from dynabro_cli.events import Event

if TYPE_CHECKING:  # it loads torch, and a worker is to be under its parent's control before that
    from dynabro_cli.experiment.resolve import Run
    from dynabro_cli.store.repetition import Rerun

Status = Literal["finished", "diverged", "failed", "stored", "interrupted"]


CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class Options:
    """How runs are made; nothing of it determines their numbers, but for ``threads``, ``device`` and ``compile`` by rounding.

    Attributes:
        jobs: How many runs at a time, each in a process of its own; None: as many as there are cores to use, or
            ``jobs_per_gpu`` on each GPU.
        threads: CPU threads of each process; None: the cores shared out among the processes.
        device: ``cpu``, ``cuda:N``, or ``cuda`` for all GPUs; ``auto`` for these or, where there are none, the CPU.
        jobs_per_gpu: How many runs share a GPU.
        data_dir: Where data sets are; None: the usual place.
        compile: ``auto``, ``on`` or ``off``.
        timeout: Seconds that a run may take, from its beginning in a process that is ready to its end; None: any number.
        max_retries: How often a run is begun again whose process died under it.
        retry_failed: Whether runs that are stored as failed are run again.
        force: Whether runs are made that need more memory than is free, by an estimate.
        rerun: Which runs that are stored are made again: ``none``, ``changed`` (a component of theirs has changed) or ``all``.
        fail_fast: Whether the first failure ends everything.
        sweep: The name that the runs are stored under.
        checkpoint_every: Seconds between two checkpoints of a run.
    """

    jobs: int | None = None
    threads: int | None = None
    device: str = "auto"
    jobs_per_gpu: int = 1
    data_dir: Path | None = None
    compile: str = "auto"
    timeout: float | None = None
    max_retries: int = 0
    retry_failed: bool = False
    rerun: Rerun = "none"
    force: bool = False
    fail_fast: bool = False
    sweep: str | None = None
    checkpoint_every: float = CHECKPOINT_SECONDS


class Outcome(NamedTuple):
    """What became of a run.

    Attributes:
        run: The run.
        status: ``finished`` or ``diverged``: it ran now, and is a result; ``stored``: there was a result before;
            ``failed``: now, or before and not tried again; ``interrupted``: it was stopped, or never begun, as ``fail_fast``
            ended everything.
        message: Why it failed, or None.
    """

    run: Run
    status: Status
    message: str | None


class Listener(Protocol):
    """Is told what happens, in the thread of ``execute_all``; a slot is a number from 0 below the number of processes.

    Nothing more is told when a signal, an error, or a failure under ``fail_fast`` has ended everything.
    """

    def started(self, slot: int, run: Run) -> None:
        """A process has begun ``run``; after a crash this comes again for the same run."""
        ...

    def event(self, slot: int, run: Run, event: Event) -> None:
        """``event`` of ``run`` has been recorded; the last one, ``Finished`` or ``Diverged``, comes before ``ended``."""
        ...

    def ended(self, slot: int, outcome: Outcome) -> None:
        """Nothing more comes of the run. One that needs no process, such as one that is stored, ends without a start."""
        ...

    def waiting(self, runs: int) -> None:
        """All that is left are so many runs that are in progress in other processes; they are waited for."""
        ...


class Due:
    """Says when a run is to write a checkpoint: every so many seconds, and when it is asked to.

    Args:
        every: Seconds between two checkpoints.
        asked: Whether one is wanted at once.
    """

    def __init__(self, every: float, asked: Callable[[], bool]) -> None:
        self._every, self._asked = every, asked
        self._last = time.monotonic()

    def __call__(self) -> bool:
        if not self._asked() and time.monotonic() - self._last < self._every:
            return False
        self._last = time.monotonic()
        return True


@dataclass(frozen=True)
class Failure:
    """Why a run failed.

    Attributes:
        reason: One line.
        details: What is stored.
        expected: Whether it was raised on purpose; such an error before the first event says that the run cannot start here.
    """

    reason: str
    details: str
    expected: bool


def failure_of(error: Exception) -> Failure:
    """Describe the exception that is being handled."""
    if isinstance(error, DynabroError):
        return Failure(str(error), str(error), expected=True)
    first = (str(error).strip().splitlines() or [""])[0]
    return Failure(f"{type(error).__name__}: {first}", traceback.format_exc(), expected=False)
