"""Assignment of runs to the places of a back end, and handling of messages, deaths, timeouts and
signals.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Sequence
from dataclasses import asdict

from dynabro_cli.core.errors import DisconnectedError, LostRunError, RunError, SpecError, first_line
from dynabro_cli.core.events import Checkpointed, Evaluated, Finished, Started
from dynabro_cli.core.registration import digests, plugins
from dynabro_cli.runs.executors._api import Failure, Options, Outcome, Sharing
from dynabro_cli.runs.executors.backend import Backend, Ended, Message, Printed
from dynabro_cli.runs.executors.interruptions import Interrupted, Interruptions
from dynabro_cli.runs.executors.ledger import Job, Ledger, Slot, State
from dynabro_cli.runs.executors.worker import Begun, Left, Misplaced, Request
from dynabro_cli.runs.store.write.transactions import KeptConnection

FALSE_STARTS = 3
"""Processes or tasks in a row that end before one starts a run, or runs that fail by the same
error of a GPU before an evaluation: then the sweep ends.
"""
LEAVE_SECONDS = 3.0
"""Seconds for runs in progress, after a signal, to finish a round and hand over a checkpoint."""


class Scheduler:
    """One sweep on a back end.

    It waits only for messages and ends. If the database is slow, the runs wait in turn.

    Args:
        ledger: The runs.
        slots: One for each place of the back end.
        options: The options, with jobs, threads and device resolved.
        backend: Where the runs are made; closed at the end.
        connection: The connection of the slots' recorders; closed before every wait.
    """

    def __init__(
        self,
        ledger: Ledger,
        slots: Sequence[Slot],
        options: Options,
        backend: Backend,
        connection: KeptConnection,
    ) -> None:
        self._ledger, self._slots, self._options, self._backend = ledger, slots, options, backend
        self._connection = connection
        self._false_starts = 0
        # errors of GPUs before an evaluation, since the last run that finished on the same one
        self._broken: list[tuple[str, str]] = []

    def run(self) -> list[Outcome]:
        """Take turns until all runs are done, a failure ends it, or a signal arrives; return the
        outcomes of the runs.

        Raises:
            InterruptedRunError: Ctrl-C.
            PreemptedError: SIGTERM.
            DynabroError: Another error, after all runs have been left.
        """
        with (
            contextlib.closing(self._connection),
            contextlib.closing(self._backend),
            Interruptions() as interruptions,
        ):
            try:
                while not self._ledger.failed_fast and self._turn(interruptions):
                    pass
                self._leave(0)
            except Interrupted:
                self._leave(LEAVE_SECONDS)
                raise interruptions.error(
                    f"runs stored as interrupted: {self._ledger.interrupted}; the same command "
                    "resumes from here"
                ) from None
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is reported
                    self._leave(0)
                raise
        return self._ledger.outcomes

    def _turn(self, interruptions: Interruptions) -> bool:
        """Start runs, wait, and handle what has arrived; return True if there was anything to wait
        for.
        """
        self._assign(interruptions)
        if not any(map(self._occupied, self._slots)) and self._ledger.patience(others=True) is None:
            return False
        # an open one would leave SQLite's log beside the database while nothing is written
        self._connection.close()
        with interruptions.allowed():
            self._backend.wait(self._patience())
        self._attend()
        return True

    def _occupied(self, slot: Slot) -> bool:
        return slot.state >= State.SENT or not self._backend.free(slot.number)

    def _assign(self, interruptions: Interruptions) -> None:
        """Give free slots their next runs, up to the capacity of the back end; end processes for
        which there is no run.
        """
        free = [slot for slot in self._slots if not (slot.closed or self._occupied(slot))]
        # a run whose process was not ready in time is looked up again, since the database may have
        # changed; each goes to the head of the queue, so the last one first keeps their order
        for slot in reversed(free):
            self._ledger.give_back(slot)
        room, idle = self._backend.capacity - (len(self._slots) - len(free)), set[str]()
        for slot in free:
            if room <= 0:
                return
            suits = functools.partial(self._suits, slot)
            if slot.device in idle or self._ledger.next(slot, interruptions.check, suits) is None:
                idle.add(slot.device)
                self._discard(slot)
                continue
            room -= 1
            if self._backend.start(slot.number):
                self._send(slot)

    def _suits(self, slot: Slot, sharing: Sharing) -> bool:
        """Return True if a run that shares a device in this way can be in a slot now.

        Runs that fill a GPU and others never share a GPU: each small kernel would wait behind
        kernels that fill it.
        """
        if not sharing.gpu or slot.device == "cpu":
            return not sharing.gpu
        others = [
            other.job.sharing
            for other in self._slots
            if other.device == slot.device and other is not slot and other.job
        ]
        beside = [other for other in others if other.gpu]
        return all(
            other.fills == sharing.fills and len(beside) < other.most_on(slot.device)
            for other in [*beside, sharing]
        )

    def _send(self, slot: Slot) -> None:
        if slot.job is None:
            return
        how, run = self._options, slot.job.run
        request = Request(
            spec=asdict(run.spec),
            key=run.key,
            data_dir=how.data_dir,
            device=slot.device_of_run,
            threads=how.threads,
            most_threads=how.most_threads,
            compile="off" if slot.job.plain else how.compile,
            resume=slot.recorder.checkpoint(run.key),
            checkpoint_every=how.checkpoint_every,
            log=slot.log.path if slot.log else None,
            memory_check="nothing" if how.force else self._backend.memory_check,
            plugins=digests.with_imports(plugins.loaded()),
            weights=how.weights,
            mps=slot.mps_of_run,
        )
        slot.state = State.SENT
        self._backend.send(slot.number, request)

    def _patience(self) -> float | None:
        """Return the seconds until the first run times out, or a run elsewhere is checked again."""
        first = min(slot.deadline for slot in self._slots)
        until = [] if first == math.inf else [max(0.0, first - time.monotonic())]
        occupied = [self._occupied(slot) for slot in self._slots]
        if all(occupied):
            # no slot is free to take a run that is no longer made elsewhere
            return min(until, default=None)
        elsewhere = self._ledger.patience(others=any(occupied))
        return min([*until, *([] if elsewhere is None else [elsewhere])], default=None)

    def _attend(self) -> None:
        """Handle messages, ends and timeouts."""
        for place, message in self._backend.collect():
            slot = self._slots[place]
            try:
                if isinstance(message, Ended):
                    self._lose(slot, message)
                else:
                    self._take(slot, message)
            except LostRunError as error:
                self._postpone(slot, error)
        for slot in self._slots:
            if time.monotonic() >= slot.deadline:
                self._expire(slot)

    def _take(self, slot: Slot, message: Message) -> None:
        """Handle a message; those that follow a run's end are ignored."""
        if slot.job is not None:
            self._handle(slot, slot.job, message)
        if slot.job is None:
            slot.clear()

    def _handle(self, slot: Slot, job: Job, message: Message) -> None:
        if isinstance(message, Begun):
            slot.state, self._false_starts = State.BEGUN, 0
            if self._options.timeout is not None:
                slot.deadline = time.monotonic() + self._options.timeout
            self._ledger.begun(slot)
        elif isinstance(message, Printed):
            if slot.log is not None:
                slot.log.write(message.text)
        elif isinstance(message, Misplaced):
            self._ledger.give_back(slot)
        elif isinstance(message, Failure):
            if self._ledger.stopping or not self._made_again(slot, message):
                self._ledger.fail(slot, message)
                self._brake(slot.device, job, message)
            else:
                self._discard(slot)
                slot.clear()
        elif isinstance(message, Left):
            self._ledger.interrupt(slot)
        elif isinstance(message, Started):
            ours = not self._ledger.stopping and self._ledger.claim(slot, message)
            if ours:
                slot.state = State.CLAIMED
            self._backend.answer(slot.number, ours)
        else:
            self._ledger.record(slot, message)
            job.evaluated |= isinstance(message, Evaluated) and message.round > 0
            if isinstance(message, Finished):
                self._broken = [error for error in self._broken if error[0] != slot.device]
            if isinstance(message, Checkpointed) and self._backend.checkpoint_resets_retries:
                job.crashes = 0
            if slot.job is not None and self._ledger.prunes(job.run, message):
                self._ledger.prune(slot)
                self._discard(slot)

    def _made_again(self, slot: Slot, failure: Failure) -> bool:
        """Return True if a run that failed is made again: from its start if its numbers are
        doubtful, without the service of its GPU, or at another place.
        """
        if failure.doubtful:
            return self._ledger.start_over(slot, failure.reason)
        if failure.occupied and self._options.executor == "local":
            self._ledger.give_back(slot)
            slot.closed = True
            if all(other.closed or other.device == "cpu" for other in self._slots):
                raise SpecError(failure.reason)
            return True
        return (
            not failure.expected
            and _names_cuda(failure)
            and self._ledger.retry(slot, failure.reason, died=False)
        )

    def _brake(self, device: str, job: Job, failure: Failure) -> None:
        """Raise RunError if errors of a GPU fail each run before it gets anywhere."""
        if job.evaluated or not _names_cuda(failure) or self._ledger.stopping:
            return
        line = first_line(failure.reason)
        self._broken.append((device, line))
        if sum(error == line for _, error in self._broken) == FALSE_STARTS:
            raise RunError(
                f"{FALSE_STARTS} runs failed on {device} before an evaluation: {line}. The other "
                "runs stay in the queue. Try: --device cpu, or --compile off; with --retry-failed"
            )

    def _lose(self, slot: Slot, end: Ended) -> None:
        """Handle the end of a process or task; without a last message, its run is lost."""
        maker = self._backend.maker
        why = f"its {maker} {end.how}"
        if slot.job is None:
            pass
        elif self._ledger.stopping:
            if slot.state >= State.BEGUN:
                self._ledger.interrupt(slot)
        elif slot.state < State.BEGUN:
            # no run began, so that none is to blame: the run goes back to the queue, uncounted
            self._false_starts += end.counts
            if self._false_starts >= FALSE_STARTS:
                raise RunError(
                    f"{FALSE_STARTS} starts of a {maker} in a row failed before a run began; the "
                    f"last {maker} {end.how}"
                )
        elif not self._ledger.retry(slot, why):
            if slot.job.crashes:
                why += f" ({slot.job.crashes + 1} attempts)"
            self._ledger.fail(slot, Failure(why, why, expected=False))
        slot.clear()

    def _expire(self, slot: Slot) -> None:
        """End a run that has taken too long, unless its last message has arrived."""
        self._backend.kill(slot.number)
        self._drain(slot)
        if slot.job is not None and self._ledger.stopping:
            self._ledger.interrupt(slot)
        elif slot.job is not None:
            text = f"timeout: it took longer than {self._options.timeout:g} s"
            self._ledger.fail(slot, Failure(text, text, expected=False))
        slot.clear()

    def _postpone(self, slot: Slot, error: LostRunError) -> None:
        """Leave a run to the process that has taken it over."""
        self._ledger.postpone(slot, error)
        self._discard(slot)
        slot.clear()

    def _discard(self, slot: Slot) -> None:
        """End the process or task at a place, and ignore its messages."""
        self._backend.kill(slot.number)
        for _ in self._backend.reap(slot.number):
            pass

    def _drain(self, slot: Slot) -> None:
        """Handle the last messages from a place where all has been killed."""
        for message in self._backend.reap(slot.number):
            try:
                self._take(slot, message)
            except LostRunError as error:
                self._ledger.postpone(slot, error)

    def _leave(self, seconds: float) -> None:
        """Let the runs in progress hand over checkpoints, within a time limit; end everything;
        store the runs in progress.
        """
        # a run that is not claimed has no row to keep, and its process could claim one while the
        # others are waited for; so it is ended first, and no Started is answered any more
        # (stopping); a run that is asked sends a checkpoint, then Left
        self._ledger.stopping = True
        asked = {slot.number for slot in self._slots if slot.state is State.CLAIMED and seconds}
        self._backend.leave(asked)
        self._end([slot for slot in self._slots if slot.number not in asked])
        end = time.monotonic() + seconds
        with contextlib.suppress(DisconnectedError):
            while (
                any(slot.state is State.CLAIMED for slot in self._slots)
                and (remaining := end - time.monotonic()) > 0
            ):
                self._connection.close()
                self._backend.wait(remaining)
                self._attend()
        self._end(self._slots)

    def _end(self, slots: Sequence[Slot]) -> None:
        """End the processes or tasks at several places, and store their runs as interrupted."""
        # all are killed before any is waited for: the ends take place at the same time
        for slot in slots:
            self._backend.kill(slot.number)
        for slot in slots:
            if slot.state >= State.BEGUN:
                self._drain(slot)
                if slot.job is not None:
                    self._ledger.interrupt(slot)
                slot.clear()


def _names_cuda(failure: Failure) -> bool:
    """Return True if a run failed by an error of CUDA, which another process on the same service
    can have caused.
    """
    return any(word in failure.reason for word in ("CUDA", "CUBLAS", "CUDNN", "cuDNN"))
