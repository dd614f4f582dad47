"""Which worker makes which run when, and what its messages, its death and its being late mean for the run."""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from typing import Any

from dynabro_cli.errors import AlreadyStoredError, InterruptedRunError, RunError, RunHeldError
from dynabro_cli.events import Diverged, Event, Finished, Started
from dynabro_cli.executors._api import Failure, Listener, Options, Outcome, Status
from dynabro_cli.executors.crew import Worker
from dynabro_cli.executors.interruptions import Interruptions
from dynabro_cli.executors.worker import Begun, Message, Ready, Request
from dynabro_cli.identity import canonical_json
from dynabro_cli.resolve import Run
from dynabro_cli.simulation.setup import versions
from dynabro_cli.store.recorder import Recorder

FALSE_STARTS = 3
"""How many worker processes may die in a row without one that begins a run."""


@dataclass
class _Job:
    """A run, its place among all, and how many processes have died under it."""

    place: int
    run: Run
    crashes: int = 0


@dataclass
class _Slot:
    """A place for a worker process, and the run that it makes or, while it starts, is going to make."""

    number: int
    recorder: Recorder
    worker: Worker | None = None
    job: _Job | None = None
    given: bool = False
    begun: bool = False
    deadline: float = math.inf


class Scheduler:
    """One sweep: slots, the runs that wait, and the outcomes.

    It waits for messages and deaths of workers, and for nothing else; where the database is slow the workers wait in turn, as
    their pipes fill.

    Args:
        runs: What to run.
        recorders: One for each process that there may be at a time.
        options: How to run it, with jobs, threads and device decided.
        listener: Is told what happens.
        entry: The function that a worker serves with.
    """

    def __init__(
        self, runs: Sequence[Run], recorders: Sequence[Recorder], options: Options, listener: Listener, entry: str
    ) -> None:
        self._options, self._listener, self._entry = options, listener, entry
        self._queue = deque(_Job(place, run) for place, run in enumerate(runs))
        self._outcomes = [Outcome(run, "interrupted", None) for run in runs]
        self._slots = [_Slot(number, recorder) for number, recorder in enumerate(recorders)]
        self._false_starts = self._interrupted = 0
        self._failed_fast = self._stopping = False

    def run(self) -> list[Outcome]:
        """Make the runs; return what became of each. Raises what ``execute_all`` raises."""
        with Interruptions() as interruptions:
            try:
                while not self._failed_fast and self._assign(interruptions):
                    with interruptions.allowed():
                        ready = set(wait(self._awaited(), self._patience()))
                    for slot in self._slots:
                        self._attend(slot, ready)
                self._stop()
            except KeyboardInterrupt:
                self._stop()
                raise InterruptedRunError(
                    f"interrupted; runs stored as interrupted: {self._interrupted}; the same command goes on from here"
                ) from None
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is the one to tell
                    self._stop()
                raise
            finally:
                for slot in self._slots:
                    _dismiss(slot)
        return self._outcomes

    def _assign(self, interruptions: Interruptions) -> bool:
        """Give every free slot its next run, and a process where it has none; return whether there is anything to wait for."""
        for slot in self._slots:
            if slot.given or (slot.worker is not None and not slot.worker.ready):
                continue
            slot.job = self._next(slot, interruptions)
            if slot.job is None:
                _dismiss(slot)
            elif slot.worker is None:
                slot.worker = Worker(self._entry)
            else:
                self._give(slot.worker, slot.job.run)
                slot.given = True
        return any(slot.worker is not None for slot in self._slots)

    def _next(self, slot: _Slot, interruptions: Interruptions) -> _Job | None:
        """The first run that waits, and is to be made as the database stands now; the slot's own goes first."""
        if slot.job is not None:
            self._queue.appendleft(slot.job)
        while self._queue:
            interruptions.check()
            job = self._queue.popleft()
            known = self._known(slot.recorder, job)
            if known is None:
                return job
            slot.job = job
            self._settle(slot, *known)
        return None

    def _known(self, recorder: Recorder, job: _Job) -> tuple[Status, str | None] | None:
        """Why a run is not to be made, as the database stands."""
        try:
            if recorder.stored(job.run.key) is not None:
                return "stored", None
        except RunHeldError as error:
            return "busy", str(error)
        reason = None if self._options.retry_failed else recorder.failure(job.run.key)
        if reason is None:
            return None
        return "failed", f"failed before ({(reason.strip().splitlines() or [''])[-1]}) and is not tried again"

    def _give(self, worker: Worker, run: Run) -> None:
        how = self._options
        worker.send(Request(asdict(run.spec), run.key, how.data_dir, how.device, how.threads, how.compile))

    def _awaited(self) -> list[Any]:
        return [thing for slot in self._slots if slot.worker for thing in (slot.worker.connection, slot.worker.sentinel)]

    def _patience(self) -> float | None:
        """Seconds until the first run has taken too long."""
        first = min(slot.deadline for slot in self._slots)
        return None if first == math.inf else max(0.0, first - time.monotonic())

    def _attend(self, slot: _Slot, ready: set[Any]) -> None:
        """Take what a slot's worker has sent, or what its death or its being late means."""
        worker = slot.worker
        if worker is None:
            return
        if worker.connection in ready:
            message = worker.receive()
            if message is None:
                self._lose(slot, worker)
                return
            self._take(slot, worker, message)
        elif worker.sentinel in ready:
            self._lose(slot, worker)
            return
        if time.monotonic() >= slot.deadline:
            worker.kill()
            self._lose(slot, worker, late=True)

    def _take(self, slot: _Slot, worker: Worker, message: Message) -> None:
        if isinstance(message, Ready):
            worker.ready = True
        elif slot.job is None:
            return
        elif isinstance(message, Begun):
            slot.begun, self._false_starts = True, 0
            if self._options.timeout is not None:
                slot.deadline = time.monotonic() + self._options.timeout
            self._listener.started(slot.number, slot.job.run)
        elif isinstance(message, Failure):
            self._fail(slot, message)
        elif isinstance(message, Started):
            self._claim(slot, worker, message)
        else:
            self._record(slot, message)

    def _claim(self, slot: _Slot, worker: Worker, event: Started) -> None:
        """Make the run this process's own in the database, or find that another was faster."""
        try:
            self._record(slot, event)
        except (RunHeldError, AlreadyStoredError) as error:
            worker.send(False)
            self._settle(slot, *_others(error))
        else:
            worker.send(True)

    def _record(self, slot: _Slot, event: Event) -> None:
        slot.recorder.record(event)
        if slot.job is not None and not self._stopping:
            self._listener.event(slot.number, slot.job.run, event)
        if isinstance(event, Finished | Diverged):
            self._settle(slot, "finished" if isinstance(event, Finished) else "diverged", None)

    def _lose(self, slot: _Slot, worker: Worker, *, late: bool = False) -> None:
        """See to what a worker that died, or was killed, had sent and was doing."""
        end = worker.bury()
        while (message := worker.left()) is not None:
            self._take(slot, worker, message)
        worker.close()
        slot.worker, slot.deadline = None, math.inf
        if slot.job is None:
            return
        if not slot.begun:
            slot.given = False
            self._false_starts += 1
            if self._false_starts >= FALSE_STARTS:
                raise RunError(
                    f"{FALSE_STARTS} worker processes in a row ended before they could begin a run; the last one {end}; "
                    "what they print says why"
                )
        elif self._stopping:
            self._interrupted += slot.recorder.run_id is not None
            slot.recorder.interrupted()
            self._settle(slot, "interrupted", None)
        elif late:
            text = f"timeout: it took longer than {self._options.timeout:g} s"
            self._fail(slot, Failure(text, text, expected=False))
        elif slot.job.crashes < self._options.max_retries:
            slot.job.crashes += 1
            slot.recorder.interrupted()
            slot.given = slot.begun = False
        else:
            text = f"its process {end}" + (f" ({slot.job.crashes + 1} attempts)" if slot.job.crashes else "")
            self._fail(slot, Failure(text, text, expected=False))

    def _fail(self, slot: _Slot, failure: Failure) -> None:
        """Store that a run failed; where it had not started, with what is known of it without a simulation."""
        if slot.job is None:
            return
        try:
            if slot.recorder.run_id is None and not failure.expected:
                slot.recorder.record(_start(slot.job.run, self._options))
            slot.recorder.failed(failure.details)
        except (RunHeldError, AlreadyStoredError) as error:
            self._settle(slot, *_others(error))
            return
        self._failed_fast = self._options.fail_fast
        self._settle(slot, "failed", failure.reason)

    def _settle(self, slot: _Slot, status: Status, message: str | None) -> None:
        """Note what became of a slot's run; the slot is free for the next."""
        if slot.job is None:
            return
        outcome = Outcome(slot.job.run, status, message)
        self._outcomes[slot.job.place] = outcome
        slot.job, slot.given, slot.begun, slot.deadline = None, False, False, math.inf
        if not self._stopping:
            self._listener.ended(slot.number, outcome)

    def _stop(self) -> None:
        """End every worker; store what was running as interrupted."""
        self._stopping = True
        workers = [(slot, slot.worker) for slot in self._slots if slot.worker is not None]
        for _, worker in workers:
            worker.kill()
        for slot, worker in workers:
            if slot.begun:
                self._lose(slot, worker)


def _dismiss(slot: _Slot) -> None:
    """End a slot's worker, which has nothing to do."""
    if slot.worker is not None:
        slot.worker.kill()
        slot.worker.bury()
        slot.worker.close()
        slot.worker = None


def _others(error: RunHeldError | AlreadyStoredError) -> tuple[Status, str | None]:
    """What a run is that another process has made, or is making."""
    return ("stored", None) if isinstance(error, AlreadyStoredError) else ("busy", str(error))


def _start(run: Run, options: Options) -> Started:
    """What is known of a run that failed before its own ``Started``; its dimension is given as 0."""
    known = {
        "spec": canonical_json(run.mapping),
        "dimension": 0,
        "noise_bound": None,
        "device": options.device,
        "host": platform.node(),
        "versions": canonical_json(versions() | {"threads": options.threads}),
    }
    return Started(run.key, asdict(run.spec) | known)
