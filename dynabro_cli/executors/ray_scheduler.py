"""Assignment of runs to a Ray cluster, and handling of messages, lost nodes and timeouts."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ray

from dynabro_cli import digests, plugins
from dynabro_cli.errors import DisconnectedError, LostRunError, RunError
from dynabro_cli.events import Checkpointed, Started
from dynabro_cli.executors._api import Failure, Options, Outcome
from dynabro_cli.executors.driving import drive
from dynabro_cli.executors.interruptions import Interruptions
from dynabro_cli.executors.ledger import Ledger, Slot
from dynabro_cli.executors.ray_node import Message, Misplaced, Printed, make
from dynabro_cli.executors.ray_post import MEASURE_SECONDS, Post, in_words
from dynabro_cli.executors.ray_share import Share
from dynabro_cli.executors.scheduler import FALSE_STARTS
from dynabro_cli.executors.worker import Begun, Left, Request


@dataclass
class _Place(Slot):
    """A slot with its task; ``attempt``: its number, None without one; ``begun``: it runs, ``claimed``: the run is ours.

    It has its task until that has ended, which is later than the run: Ray would start another process for the next one.
    """

    attempt: int | None = None
    task: Any = None
    begun: bool = False
    claimed: bool = False
    deadline: float = math.inf

    def over(self) -> None:
        """Note that no run is in progress here any more."""
        self.begun, self.claimed, self.deadline = False, False, math.inf

    def clear(self) -> None:
        """Note that no task is here any more."""
        self.over()
        self.attempt = self.task = None


class RayScheduler:
    """One sweep in a Ray cluster.

    A task is one attempt at a run, and Ray must not repeat it: a new attempt gets the last checkpoint, and late messages of the
    old one are dropped. Tasks that fit nowhere wait in Ray, unclaimed.

    Args:
        ledger: The runs.
        slots: One for each run that may be in the cluster at a time.
        options: How to make the runs, with threads and device decided.
        share: What a run takes of a node.
        mailbox: The actor.
        entry: What the tasks make runs with.
    """

    def __init__(self, ledger: Ledger, slots: Sequence[Slot], options: Options, share: Share, mailbox: Any, entry: str) -> None:
        self._ledger, self._options, self._mailbox, self._entry = ledger, options, mailbox, entry
        self._slots = [_Place(slot.number, slot.recorder, slot.device) for slot in slots]
        # GPU tasks would have a process each by default; one that finds itself on another GPU says so
        self._task = ray.remote(num_cpus=share.cpus, num_gpus=share.gpus, max_calls=0, max_retries=0)(make)
        self._attempts = itertools.count()
        self._post = Post(mailbox, share)
        self._false_starts = 0

    def run(self) -> list[Outcome]:
        """Make the runs; return what became of each. Raises what ``execute_all_on_ray`` raises."""
        try:
            with contextlib.closing(self._post):
                return drive(self._ledger, self._turn, self._leave)
        finally:
            with contextlib.suppress(Exception):
                ray.kill(self._mailbox)

    def _turn(self, interruptions: Interruptions) -> bool:
        if not self._assign(interruptions):
            return False
        with interruptions.allowed():
            self._post.wait(self._patience())
        self._attend()
        return True

    def _assign(self, interruptions: Interruptions) -> bool:
        """Send as many runs to the cluster as there is room for; return whether there is anything to wait for."""
        free = [slot for slot in self._slots if slot.attempt is None]
        for slot in free:
            self._ledger.give_back(slot)
        room = (self._options.jobs or max(1, self._post.capacity)) - (len(self._slots) - len(free))
        for slot in free[: max(0, room)]:
            if self._ledger.next(slot, interruptions.check) is None:
                break
            self._send(slot)
        return any(slot.attempt is not None for slot in self._slots) or self._ledger.patience(True) is not None

    def _send(self, slot: _Place) -> None:
        if slot.job is None:
            return
        how, run = self._options, slot.job.run
        request = Request(
            spec=asdict(run.spec),
            key=run.key,
            data_dir=how.data_dir,
            device=slot.device,
            threads=how.threads,
            compile=how.compile,
            resume=slot.recorder.checkpoint(run.key),
            checkpoint_every=how.checkpoint_every,
            check="nothing" if how.force else "all",
            plugins=digests.with_imports(plugins.loaded()),
        )
        slot.attempt = next(self._attempts)
        slot.task = self._task.remote(self._mailbox, slot.attempt, request, self._entry)
        self._post.watch(slot.task, slot.attempt)

    def _patience(self) -> float | None:
        """Return the seconds until the first run times out, or a run elsewhere is checked again."""
        first = min(slot.deadline for slot in self._slots)
        until = [MEASURE_SECONDS] if first == math.inf else [max(0.0, first - time.monotonic())]
        if all(slot.attempt is not None for slot in self._slots):
            return min(until)  # no slot is free to take a run that is no longer made elsewhere
        elsewhere = self._ledger.patience(any(slot.attempt is not None for slot in self._slots))
        return min([*until, *([] if elsewhere is None else [elsewhere])])

    def _attend(self) -> None:
        """Take everything that has come, and end what has taken too long."""
        places = {slot.attempt: slot for slot in self._slots if slot.attempt is not None}
        for item in self._post.collect():
            slot = places.get(item.attempt)
            if slot is None or slot.attempt != item.attempt:
                if isinstance(item.message, Started):
                    self._mailbox.answer.remote(item.attempt, False)
                continue
            try:
                if item.message is None:
                    self._lose(slot, item.error)
                elif slot.job is not None:
                    self._take(slot, item.message)
            except LostRunError:
                self._ledger.postpone(slot)
                self._cancel(slot)
        for slot in self._slots:
            if time.monotonic() >= slot.deadline:
                text = f"timeout: it took longer than {self._options.timeout:g} s"
                self._ledger.fail(slot, Failure(text, text, expected=False))
                self._cancel(slot)

    def _take(self, slot: _Place, message: Message) -> None:
        if isinstance(message, Begun):
            slot.begun, self._false_starts = True, 0
            if self._options.timeout is not None:
                slot.deadline = time.monotonic() + self._options.timeout
            self._ledger.begun(slot)
        elif isinstance(message, Printed):
            if slot.log is not None:
                slot.log.tell(message.text)
        elif isinstance(message, Misplaced):
            self._ledger.give_back(slot)
        elif isinstance(message, Failure):
            self._ledger.fail(slot, message)
        elif isinstance(message, Left):
            self._ledger.interrupt(slot)
        elif isinstance(message, Started):
            slot.claimed = not self._ledger.stopping and self._ledger.claim(slot, message)
            self._mailbox.answer.remote(slot.attempt, slot.claimed)
        else:
            self._ledger.record(slot, message)
            if isinstance(message, Checkpointed) and slot.job is not None:
                slot.job.crashes = 0
        if slot.job is None:
            slot.over()

    def _lose(self, slot: _Place, error: Exception | None) -> None:
        """Handle the end of a task: without a last message, the task is lost."""
        end = in_words(error)
        if slot.job is None:
            pass
        elif self._ledger.stopping:
            if slot.begun:
                self._ledger.interrupt(slot)
        elif not slot.begun:
            self._false_starts += not isinstance(error, ray.exceptions.NodeDiedError)
            if self._false_starts >= FALSE_STARTS:
                raise RunError(f"{FALSE_STARTS} tasks in a row ended on Ray before they could begin a run; the last one {end}")
        elif not self._ledger.again(slot, f"its task {end}"):
            text = f"its task {end}" + (f" ({slot.job.crashes + 1} attempts)" if slot.job.crashes else "")
            self._ledger.fail(slot, Failure(text, text, expected=False))
        slot.clear()

    def _cancel(self, slot: _Place) -> None:
        """End a slot's task at once, wherever it is; later messages do not count."""
        if slot.attempt is not None:
            with contextlib.suppress(Exception):
                self._mailbox.answer.remote(slot.attempt, False)
                ray.cancel(slot.task, force=True)
        slot.clear()

    def _leave(self, seconds: float) -> None:
        """Let the runs in progress hand over checkpoints, within a time limit; end every task; store the runs in progress."""
        self._ledger.stopping = True
        if seconds:
            self._mailbox.leave.remote()
        for slot in self._slots:
            if not (slot.claimed and seconds):
                self._end(slot)
        end = time.monotonic() + seconds
        with contextlib.suppress(DisconnectedError):
            while any(slot.claimed for slot in self._slots) and (left := end - time.monotonic()) > 0:
                self._post.wait(left)
                self._attend()
        for slot in self._slots:
            self._end(slot)

    def _end(self, slot: _Place) -> None:
        begun = slot.begun
        self._cancel(slot)
        if begun:
            self._ledger.interrupt(slot)
