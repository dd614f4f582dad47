"""Assignment of runs to worker processes, and handling of their messages, deaths and timeouts."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from typing import Any

from dynabro_cli import digests, plugins
from dynabro_cli.errors import LostRunError, RunError
from dynabro_cli.events import Started
from dynabro_cli.executors._api import Failure, Options, Outcome
from dynabro_cli.executors.crew import Worker
from dynabro_cli.executors.driving import drive
from dynabro_cli.executors.interruptions import Interruptions
from dynabro_cli.executors.ledger import Ledger, Slot
from dynabro_cli.executors.worker import Begun, Left, Message, Ready, Request, Stop

FALSE_STARTS = 3
"""Most worker processes in a row that may die before one starts a run."""


@dataclass
class _Place(Slot):
    """A slot with its worker process; ``begun``: it makes the run, ``given``: it was asked to, ``claimed``: the run is ours."""

    worker: Worker | None = None
    given: bool = False
    begun: bool = False
    claimed: bool = False
    deadline: float = field(default=math.inf)

    def clear(self) -> None:
        """Nothing is in progress here any more."""
        self.given, self.begun, self.claimed, self.deadline = False, False, False, math.inf


class Scheduler:
    """One sweep in worker processes of this machine.

    It waits only for messages and deaths of workers. If the database is slow, the workers wait in turn, as their pipes fill.

    Args:
        ledger: The runs.
        slots: One for each process at a time.
        options: The options, with jobs and threads resolved.
        entry: The function of a worker.
    """

    def __init__(self, ledger: Ledger, slots: Sequence[Slot], options: Options, entry: str) -> None:
        self._ledger, self._options, self._entry = ledger, options, entry
        self._slots = [_Place(slot.number, slot.recorder, slot.device) for slot in slots]
        self._false_starts = 0

    def run(self) -> list[Outcome]:
        """Make the runs; return their outcomes. Raises the errors of ``execute_all``."""
        try:
            return drive(self._ledger, self._turn, self._leave)
        finally:
            for slot in self._slots:
                _dismiss(slot)

    def _turn(self, interruptions: Interruptions) -> bool:
        if not self._assign(interruptions):
            return False
        with interruptions.allowed():
            ready = self._wait(self._patience())
        for slot in self._slots:
            self._attend(slot, ready)
        return True

    def _assign(self, interruptions: Interruptions) -> bool:
        """Give every free slot its next run, and a process if it has none; return True if there is anything to wait for."""
        for slot in self._slots:
            if slot.given or (slot.worker is not None and not slot.worker.ready):
                continue
            if slot.job is not None:
                self._ledger.give_back(slot)
            if self._ledger.next(slot, interruptions.check) is None:
                _dismiss(slot)
            elif slot.worker is None:
                slot.worker = Worker(self._entry)
            else:
                self._give(slot, slot.worker)
        return any(slot.worker is not None for slot in self._slots) or self._ledger.patience(True) is not None

    def _give(self, slot: _Place, worker: Worker) -> None:
        if slot.job is None:
            return
        how, run = self._options, slot.job.run
        worker.send(
            Request(
                spec=asdict(run.spec),
                key=run.key,
                data_dir=how.data_dir,
                device=slot.device,
                threads=how.threads,
                compile=how.compile,
                resume=slot.recorder.checkpoint(run.key),
                checkpoint_every=how.checkpoint_every,
                log=slot.log.path if slot.log else None,
                check="nothing" if how.force else "gpu",
                plugins=digests.with_imports(plugins.loaded()),
            )
        )
        slot.given = True

    def _wait(self, patience: float | None) -> set[Any]:
        """Return the pipes and processes that are ready, after a time limit at the latest."""
        things = [thing for slot in self._slots if slot.worker for thing in (slot.worker.connection, slot.worker.sentinel)]
        if things:
            return set(wait(things, patience))
        time.sleep(patience or 0)
        return set()

    def _patience(self) -> float | None:
        """Return the seconds until the first run times out, or a run elsewhere is checked again."""
        first = min(slot.deadline for slot in self._slots)
        until = [] if first == math.inf else [max(0.0, first - time.monotonic())]
        if all(slot.worker for slot in self._slots):
            return min(until, default=None)  # no slot is free to take a run that is no longer made elsewhere
        elsewhere = self._ledger.patience(any(slot.worker for slot in self._slots))
        return min([*until, *([] if elsewhere is None else [elsewhere])], default=None)

    def _attend(self, slot: _Place, ready: set[Any]) -> None:
        """Handle the messages of a slot's worker, its death, or its timeout."""
        worker = slot.worker
        if worker is None:
            return
        try:
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
        except LostRunError:
            self._ledger.postpone(slot)
            slot.clear()
            _dismiss(slot)

    def _take(self, slot: _Place, worker: Worker, message: Message) -> None:
        if isinstance(message, Ready):
            worker.ready = True
        elif slot.job is None:
            return
        elif isinstance(message, Begun):
            slot.begun, self._false_starts = True, 0
            if self._options.timeout is not None:
                slot.deadline = time.monotonic() + self._options.timeout
            if slot.log is not None:
                slot.log.tell(f"begun by process {worker.pid}")
            self._ledger.begun(slot)
        elif isinstance(message, Failure):
            self._ledger.fail(slot, message)
        elif isinstance(message, Left):
            self._ledger.interrupt(slot)
        elif isinstance(message, Started):
            slot.claimed = not self._ledger.stopping and self._ledger.claim(slot, message)
            worker.send(slot.claimed)
        else:
            self._ledger.record(slot, message)
        if slot.job is None:
            slot.clear()

    def _lose(self, slot: _Place, worker: Worker, *, late: bool = False) -> None:
        """Handle the last messages and the run of a worker that died or was killed."""
        end = worker.bury()
        try:
            while (message := worker.left()) is not None:
                self._take(slot, worker, message)
        finally:
            worker.close()
            slot.worker, slot.deadline = None, math.inf
        if slot.job is None:
            return
        if self._ledger.stopping:
            self._ledger.interrupt(slot)
        elif not slot.begun:
            slot.given = False
            self._false_starts += 1
            if self._false_starts >= FALSE_STARTS:
                raise RunError(
                    f"{FALSE_STARTS} worker processes in a row ended before they could begin a run; the last one {end}; "
                    "what they print says why"
                )
        elif late:
            text = f"timeout: it took longer than {self._options.timeout:g} s"
            self._ledger.fail(slot, Failure(text, text, expected=False))
        elif not self._ledger.again(slot, f"its process {end}"):
            text = f"its process {end}" + (f" ({slot.job.crashes + 1} attempts)" if slot.job.crashes else "")
            self._ledger.fail(slot, Failure(text, text, expected=False))
        slot.clear()

    def _leave(self, seconds: float) -> None:
        """Let the runs in progress hand over checkpoints, within a time limit; end every worker; store the runs in progress."""
        self._ledger.stopping = True
        for slot in self._slots:
            if slot.worker is not None and slot.claimed and seconds:
                slot.worker.send(Stop())
            elif slot.worker is not None:
                slot.worker.kill()
        end = time.monotonic() + seconds
        while any(slot.worker and slot.claimed for slot in self._slots) and (left := end - time.monotonic()) > 0:
            ready = self._wait(left)
            for slot in self._slots:
                self._attend(slot, ready)
        for slot in self._slots:
            if slot.worker is not None:
                slot.worker.kill()
        for slot in self._slots:
            if slot.worker is not None and slot.begun:
                self._lose(slot, slot.worker)


def _dismiss(slot: _Place) -> None:
    """End a slot's worker, which has nothing to do."""
    if slot.worker is not None:
        slot.worker.kill()
        slot.worker.bury()
        slot.worker.close()
        slot.worker = None
