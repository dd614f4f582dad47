"""What executors of many runs share: how runs are to be made, what becomes of each, and who is told meanwhile."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from dynabro_cli.errors import DynabroError
from dynabro_cli.events import Event

if TYPE_CHECKING:  # it loads torch, and a worker is to be under its parent's control before that
    from dynabro_cli.resolve import Run

Status = Literal["finished", "diverged", "failed", "stored", "busy", "interrupted"]


@dataclass(frozen=True)
class Options:
    """How runs are made; nothing of it determines their numbers, but for ``threads``, ``device`` and ``compile`` by rounding.

    Attributes:
        jobs: How many runs at a time, each in a process of its own; None: as many as there are cores to use, or one on a GPU.
        threads: CPU threads of each process; None: the cores shared out among the processes.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        data_dir: Where data sets are; None: the usual place.
        compile: ``auto``, ``on`` or ``off``.
        timeout: Seconds that a run may take, from its beginning in a process that is ready to its end; None: any number.
        max_retries: How often a run is begun again whose process died under it.
        retry_failed: Whether runs that are stored as failed are run again.
        fail_fast: Whether the first failure ends everything.
        sweep: The name that the runs are stored under.
    """

    jobs: int | None = None
    threads: int | None = None
    device: str = "auto"
    data_dir: Path | None = None
    compile: str = "auto"
    timeout: float | None = None
    max_retries: int = 0
    retry_failed: bool = False
    fail_fast: bool = False
    sweep: str | None = None


class Outcome(NamedTuple):
    """What became of a run.

    Attributes:
        run: The run.
        status: ``finished`` or ``diverged``: it ran now, and is a result; ``stored``: there was a result before;
            ``failed``: now, or before and not tried again; ``busy``: another live process has it; ``interrupted``: it was
            stopped, or never begun, as ``fail_fast`` ended everything.
        message: Why it failed, who has it, or None.
    """

    run: Run
    status: Status
    message: str | None


class Listener(Protocol):
    """Is told what happens, in the thread of ``execute_all``; a slot is a number from 0 below the number of processes.

    Nothing more is told when Ctrl-C, an error, or a failure under ``fail_fast`` has ended everything.
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
