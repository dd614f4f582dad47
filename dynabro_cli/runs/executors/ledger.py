"""A cache of the database for one sweep: the queue of its runs, and their outcomes.

The database decides which runs are stored, and who makes them; other commands change it meanwhile.
So a run from the queue is looked up again right before it starts, and once more when it is claimed.
"""

from __future__ import annotations

import enum
import math
import platform
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace

from dynabro_cli.core.errors import (
    AlreadyStoredError,
    DynabroError,
    LostRunError,
    RunHeldError,
    last_line,
)
from dynabro_cli.core.events import Diverged, Event, Finished, Started
from dynabro_cli.experiment.key import canonical_json
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors._api import (
    ON_CPU,
    Failure,
    Listener,
    Options,
    Outcome,
    Sharing,
    Status,
)
from dynabro_cli.runs.executors.run_log import RunLog
from dynabro_cli.runs.store.ownership import lease_seconds
from dynabro_cli.runs.store.write.recorder import Recorder
from dynabro_cli.runs.store.write.side_files import SideFiles

REVISIT_SECONDS = 1.0
"""Pause between two checks of runs that are in progress elsewhere."""
NO_SERVICE = "none"
"""A name that does not exist in the folder of CUDA's multi-process service, so that CUDA uses none,
whatever runs elsewhere.
"""


@dataclass
class Job:
    """A run, its index among all runs, how it shares a device, and the number of processes that
    died under it.

    ``evaluated`` is True after an evaluation later than the first one. ``alone`` is True for a
    second attempt on a GPU, without CUDA's multi-process service; ``plain`` for one from the start
    with ``--compile off``. A run that another process took over is not taken back before
    ``untouched_until``, by ``time.monotonic``.
    """

    index: int
    run: Run
    sharing: Sharing
    crashes: int = 0
    alone: bool = False
    plain: bool = False
    evaluated: bool = False
    untouched_until: float = 0.0


class State(enum.IntEnum):
    """Progress of the run in a slot, in this order; ``Slot.clear`` returns to ``WAITING``.

    The state decides what the end of the process means. A run that is not ``BEGUN`` goes back to
    the queue; otherwise it is retried, failed or interrupted. Only a ``CLAIMED`` run has a row that
    is ours: before that, another process may claim it first.
    """

    WAITING = 0
    """No request is out; the slot may have a run whose process is still starting."""
    SENT = 1
    """The process was asked to make the run."""
    BEGUN = 2
    """The process has read the request."""
    CLAIMED = 3
    """The run's row in the database is ours."""


@dataclass
class Slot:
    """A place for a run in progress.

    Attributes:
        number: The place.
        recorder: The writer of the run's rows.
        device: The device of the place.
        mps: Folder of CUDA's multi-process service for the device.
        job: The run; None for an empty slot.
        log: The log of the run.
        state: The progress of the run.
        deadline: The time, by ``time.monotonic``, at which the run has taken too long.
        closed: True if the place takes no further run, because others use the memory of its GPU.
    """

    number: int
    recorder: Recorder
    device: str
    mps: str | None = None
    job: Job | None = None
    log: RunLog | None = None
    state: State = State.WAITING
    deadline: float = math.inf
    closed: bool = False

    @property
    def device_of_run(self) -> str:
        """Device of the run: the place's, unless the run computes on the CPU."""
        return self.device if self.job is not None and self.job.sharing.gpu else "cpu"

    @property
    def mps_of_run(self) -> str | None:
        """Folder of the service at a place of a GPU, also for a run on the CPU, after which the
        process may use the GPU.

        A second attempt gets a folder without a service.
        """
        if self.mps is None or self.job is None or self.device == "cpu":
            return None
        return f"{self.mps}/{NO_SERVICE}" if self.job.alone else self.mps

    def clear(self) -> None:
        """Note that no run is in progress here any more."""
        self.state, self.deadline = State.WAITING, math.inf


class Ledger:
    """Runs to make, and their outcomes.

    A run that is in progress elsewhere is checked again when nothing else is left, until it has a
    result or its process is presumed dead.

    Args:
        runs: All runs, with different keys.
        options: The options, with jobs, threads and device resolved.
        files: Logs and checkpoints.
        listener: Receives the events.
        stored: Keys of runs that are known to have a result that is not to be repeated.
        sharing: How a run shares its device.

    Attributes:
        outcomes: The outcome of each run, in the order of ``runs``.
        failed_fast: True if a failure has ended everything.
        stopping: True when everything ends early; the listener is not called any more.
        interrupted: Number of runs that were stored as interrupted.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        options: Options,
        files: SideFiles,
        listener: Listener,
        stored: Collection[str] = (),
        sharing: Callable[[Run], Sharing] = lambda _: ON_CPU,
    ) -> None:
        self._options, self._files, self._listener, self._stored = options, files, listener, stored
        self._sharing = sharing
        # apart, so that no search passes all runs that a slot cannot take
        self._queues: dict[Sharing, deque[Job]] = {}
        self._elsewhere: list[Job] = []
        self._look_again = 0.0
        self.outcomes: list[Outcome] = []
        self._add(runs)
        self.failed_fast = self.stopping = False
        self.interrupted = 0

    def next(
        self,
        slot: Slot,
        check: Callable[[], None],
        suits: Callable[[Sharing], bool] = lambda _: True,
    ) -> Job | None:
        """Take the first run that the database still needs; None if no run can be taken now.

        Args:
            slot: The slot of the run.
            check: Called before each query of the database.
            suits: Returns True if runs that share a device in this way can be in the slot now.
        """
        # these runs take minutes elsewhere: without a pause, every turn would look all of them up
        if not self._queued and self.elsewhere() and time.monotonic() >= self._look_again:
            self.revisit()
            self._look_again = time.monotonic() + REVISIT_SECONDS
        while self._queued or self._fetch():
            check()
            queues = {
                sharing: queue
                for sharing, queue in self._queues.items()
                if queue and suits(sharing)
            }
            if not queues:
                return None
            # a place of a GPU takes a run for the CPU only if no other run can be there
            first = min(queues, key=lambda sharing: (not sharing.gpu, queues[sharing][0].index))
            job = queues[first].popleft()
            if not self.wanted(job.run):
                continue
            try:
                end = self._end_of(slot.recorder, job)
            except RunHeldError:
                self._elsewhere.append(job)
                continue
            if end is None and time.monotonic() < job.untouched_until:
                self._elsewhere.append(job)
            elif end is None:
                slot.job = job
                slot.log = RunLog.of(self._files, job.run.key)
                return job
            else:
                self._note(slot.number, job, Outcome(job.run, *end))
        return None

    def more(self) -> Sequence[Run]:
        """Return further runs, if a place is free and no run is queued. A search chooses them by
        the results so far.
        """
        return ()

    def wanted(self, run: Run) -> bool:
        """Return False for a queued run that need not be made any more."""
        return True

    def prunes(self, run: Run, event: Event) -> bool:
        """Return True if a run ends after this event, stored as ``pruned``, because its result
        would not matter.
        """
        return False

    @property
    def _queued(self) -> bool:
        return any(self._queues.values())

    def _queue(self, *jobs: Job) -> None:
        for job in jobs:
            self._queues.setdefault(job.sharing, deque()).append(job)

    def _add(self, runs: Sequence[Run]) -> None:
        self._queue(
            *(
                Job(index, run, self._sharing(run))
                for index, run in enumerate(runs, len(self.outcomes))
            )
        )
        self.outcomes += [Outcome(run, "interrupted", None) for run in runs]

    def _fetch(self) -> bool:
        runs = self.more()
        self._add(runs)
        return bool(runs)

    def patience(self, *, others: bool) -> float | None:
        """Return the seconds until runs in progress elsewhere are checked again, and report to the
        listener if they are all that is left; None if there are none.

        Args:
            others: True if there are runs in progress here.
        """
        waited_for = self.elsewhere()
        if not waited_for:
            return None
        if not others and not self._queued:
            self._listener.waiting(waited_for)
        return max(0.0, self._look_again - time.monotonic())

    def elsewhere(self) -> int:
        """Return the number of runs in progress elsewhere that are waited for."""
        return len(self._elsewhere)

    def revisit(self) -> None:
        """Check again what is in progress elsewhere."""
        self._queue(*self._elsewhere)
        self._elsewhere.clear()

    def _end_of(self, recorder: Recorder, job: Job) -> tuple[Status, str | None] | None:
        """Return the outcome of a run that is not to be made, as the database is now; None if it is
        to be made.
        """
        if job.run.key in self._stored:
            return "stored", None
        state = recorder.state(job.run.key)
        if state.end != "failed" or state.row is None:
            return None if state.end is None else (state.end, None)
        if self._options.retry_failed:
            return None
        error = last_line(state.row["error"] or "")
        return "failed", f"failed before ({error}) and is not repeated"

    def begun(self, slot: Slot) -> None:
        """Note that a process has started the slot's run."""
        if slot.job is not None:
            self._listener.started(slot.number, slot.job.run)

    def claim(self, slot: Slot, event: Started) -> bool:
        """Claim the slot's run in the database; if another process was faster, free the slot and
        return False.
        """
        try:
            self.record(slot, event)
        except (RunHeldError, AlreadyStoredError) as error:
            self.postpone(slot, error)
            return False
        return True

    def record(self, slot: Slot, event: Event) -> None:
        """Store an event of the slot's run, and pass it on; the last event frees the slot.

        Raises:
            RunHeldError: Another process makes the run. LostRunError: Another process has taken
                over the run.
            DynabroError: The database cannot be written.
        """
        slot.recorder.record(event)
        if slot.log is not None:
            slot.log.event(event)
        if slot.job is not None and not self.stopping:
            self._listener.event(slot.number, slot.job.run, event)
        if isinstance(event, Finished | Diverged):
            self._settle(slot, "finished" if isinstance(event, Finished) else "diverged", None)

    def prune(self, slot: Slot) -> None:
        """Store the slot's run as pruned, and free the slot."""
        slot.recorder.pruned()
        self._settle(slot, "pruned", None)

    def fail(self, slot: Slot, failure: Failure) -> None:
        """Store that the slot's run failed; if it had not started, with the fields that are known
        without a simulation.
        """
        if slot.job is None:
            return
        if slot.log is not None:
            slot.log.failed(failure.details)
        try:
            fresh = slot.recorder.run_id is None and not failure.expected
            if fresh and not slot.recorder.failed_before_going_on(
                slot.job.run.key, failure.details
            ):
                slot.recorder.record(
                    _started_event(slot.job.run, replace(self._options, device=slot.device_of_run))
                )
            slot.recorder.failed(failure.details)
        except (RunHeldError, AlreadyStoredError) as error:
            self.postpone(slot, error)
            return
        self.failed_fast = self._options.fail_fast
        self._settle(slot, "failed", failure.reason, failure)

    def interrupt(self, slot: Slot) -> None:
        """Store the slot's run as interrupted, and free the slot."""
        self.interrupted += slot.recorder.run_id is not None
        if slot.log is not None:
            slot.log.interrupted()
        self._store_interrupted(slot)
        self._settle(slot, "interrupted", None)

    def retry(self, slot: Slot, why: str, *, died: bool = True) -> bool:
        """Return True if the slot's run may be started again; its rows are then stored.

        A run that used CUDA's multi-process service is first tried without it: an error of one
        client can end the service, and with it the runs of all clients.

        Args:
            slot: The slot.
            why: The reason, as a sentence.
            died: True if the process died; False for an error of the GPU, which is not retried
                otherwise.
        """
        if slot.job is None:
            return False
        alone = slot.mps_of_run is not None and slot.job.sharing.gpu and not slot.job.alone
        if alone:
            slot.job.alone = True
        elif died and slot.job.crashes < self._options.max_retries:
            slot.job.crashes += 1
        else:
            return False
        if slot.log is not None:
            slot.log.write(
                f"{why}; the run is retried"
                + (" without CUDA's multi-process service" if alone else "")
            )
        self._store_interrupted(slot)
        return True

    def start_over(self, slot: Slot, why: str) -> bool:
        """Return True if the slot's run, whose numbers are doubtful, starts again from the
        beginning, with ``--compile off``.
        """
        if slot.job is None or slot.job.plain:
            return False
        slot.job.plain = True
        if slot.log is not None:
            slot.log.write(f"{why}; the run starts over with --compile off")
        self._store_interrupted(slot, doubtful=True)
        return True

    def give_back(self, slot: Slot) -> None:
        """Put the slot's run, which has not started, at the head of the queue."""
        if slot.job is not None:
            self._queues[slot.job.sharing].appendleft(slot.job)
            slot.job = slot.log = None

    def postpone(self, slot: Slot, error: DynabroError) -> None:
        """Free the slot; another process owns its run, which is checked again later."""
        if slot.job is not None:
            self._lost(slot.job, error)
            self._elsewhere.append(slot.job)
            slot.job = slot.log = None

    def _lost(self, job: Job, error: DynabroError) -> None:
        """Report a run that was taken over, and leave it alone for a lease: two processes that do
        not see each other would take it from each other for ever.
        """
        if isinstance(error, LostRunError):
            job.untouched_until = time.monotonic() + lease_seconds()
            warnings.warn(str(error), stacklevel=2)

    def _store_interrupted(self, slot: Slot, *, doubtful: bool = False) -> None:
        try:
            slot.recorder.interrupted(doubtful=doubtful)
        except LostRunError as error:
            if slot.job is not None:
                self._lost(slot.job, error)

    def _settle(
        self, slot: Slot, status: Status, message: str | None, failure: Failure | None = None
    ) -> None:
        if slot.job is not None:
            job, slot.job, slot.log = slot.job, None, None
            self._note(slot.number, job, Outcome(job.run, status, message, failure))

    def _note(self, number: int, job: Job, outcome: Outcome) -> None:
        """Note the outcome of a run."""
        self.outcomes[job.index] = outcome
        if not self.stopping:
            self._listener.ended(number, outcome)


def _started_event(run: Run, options: Options) -> Started:
    """Return the start event of a run that failed before its own ``Started``; its dimension is
    0.
    """
    from dynabro_cli.simulation.setup import versions  # it loads torch

    stored_fields = {
        "spec": canonical_json(run.mapping),
        "dimension": 0,
        "noise_bound": None,
        "device": options.device,
        "host": platform.node(),
        "versions": canonical_json(versions() | {"threads": options.threads}),
    }
    return Started(run.key, asdict(run.spec) | stored_fields)
