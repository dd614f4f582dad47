"""The log of a run: one line per event, and the output of its process in between."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dynabro_cli.core import events
from dynabro_cli.core.machine.strangers_files import open_log
from dynabro_cli.experiment.label import OTHERS, cell
from dynabro_cli.runs.store.write.side_files import SideFiles

SETTINGS = (*OTHERS, "dimension", "noise_bound")
"""Columns of a run's beginning that share a line: all that have no line elsewhere."""


class RunLog:
    """Append lines to the log of a run; if this fails, the run continues without a log.

    Each line begins with the time in UTC; continuation lines are indented.

    Args:
        path: The file, in a folder that exists; None for no log.
        failed: Called with the error if a line cannot be written.

    Attributes:
        path: The same, for a process that appends what it prints.
    """

    def __init__(
        self, path: Path | None, failed: Callable[[OSError], None] = lambda error: None
    ) -> None:
        self.path = path
        self._failed = failed
        self._began = time.monotonic()

    @classmethod
    def of(cls, files: SideFiles, run_key: str) -> RunLog:
        """Return the log of a run beside its database; without a file if its folder cannot be
        created.
        """
        return cls(files.prepare_log(run_key), lambda error: files.go_without("logs", error))

    def write(self, text: str) -> None:
        """Write ``text`` after the time."""
        if self.path is None:
            return
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        lines = f"{now} {text.rstrip()}".replace("\n", "\n    ") + "\n"
        try:
            # one write, because others append, too
            with open(open_log(self.path), "ab", buffering=0) as file:
                file.write(lines.encode(errors="backslashreplace"))
        except OSError as error:
            self._failed(error)

    def event(self, event: events.Event) -> None:
        """Write a line about an event; rounds go to the database only."""
        if isinstance(event, events.Started):
            self._start(event)
        elif isinstance(event, events.Evaluated):
            scores = {
                "accuracy": event.test_accuracy,
                "loss": event.test_loss,
                "train loss": event.train_loss,
                "gap": event.gap,
            }
            self.write(f"round {event.round}, budget {event.budget}: {_numbers(scores)}")
        elif isinstance(event, events.Checkpointed):
            self.write(f"checkpoint after round {event.totals.rounds}, {len(event.data):,} bytes")
        elif isinstance(event, events.Weights):
            self.write(f"model after round {event.round}, {len(event.data):,} bytes")
        elif isinstance(event, events.Diverged | events.Finished):
            how = (
                "finished"
                if isinstance(event, events.Finished)
                else f"diverged in round {event.round}"
            )
            numbers = _numbers({"accuracy": event.accuracy, "loss": event.loss, "gap": event.gap})
            done = (
                f"{event.totals.rounds} rounds, {event.totals.budget_spent} gradient "
                "computations per worker"
            )
            self.write(f"{how}: {numbers or 'no numbers'}; {done}; {self._seconds():.1f} s")

    def interrupted(self) -> None:
        """Write that the run was stopped."""
        self.write(
            f"interrupted after {self._seconds():.1f} s; the same command resumes from the "
            "last checkpoint, if there is one"
        )

    def failed(self, details: str) -> None:
        """Write the reason of the failure, with the traceback if there is one."""
        self.write(f"failed after {self._seconds():.1f} s: {details}")

    def _start(self, event: events.Started) -> None:
        self._began = time.monotonic()
        record, done = event.record, event.resumed
        how = (
            "started"
            if done is None
            else f"resuming after round {done.rounds} with budget {done.budget_spent} spent"
        )
        if event.unused is not None:
            self.write(f"{event.unused}; the run starts from the beginning")
        for line in event.notes:
            self.write(line)
        self.write(f"{how}: {cell(record)}")
        programs = json.loads(record["versions"])
        threads = programs.pop("threads", None)
        where = f"on {record['device']} of {record['host']}, stored by process {os.getpid()}"
        self.write(f"run {event.run_key} {where}" + (f", threads {threads}" if threads else ""))
        self.write(
            ", ".join(f"{name} {record[name]}" for name in SETTINGS if record.get(name) is not None)
        )
        self.write(
            "; ".join(
                f"{name} {_text(value)}" for name, value in programs.items() if value is not None
            )
        )

    def _seconds(self) -> float:
        """Seconds since the run started or resumed."""
        return time.monotonic() - self._began


def _numbers(numbers: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in numbers.items() if value is not None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
