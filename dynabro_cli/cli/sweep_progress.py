"""Progress of a sweep on standard error: a bar for all runs and one for each in progress; plain lines without a terminal."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from dynabro_cli import events
from dynabro_cli.cli.output import duration
from dynabro_cli.plan import cell, distinguishing

if TYPE_CHECKING:
    from dynabro_cli.executors._api import Outcome
    from dynabro_cli.resolve import Run

SPEED_SECONDS = 600
"""For how long back the live view looks to tell the time to go."""


@dataclass
class _Slot:
    """What is shown of the run in progress in a slot."""

    task: TaskID
    run: Run
    spent: int = 0
    score: str = ""
    byzantine: str = ""


class SweepProgress:
    """Shows the runs of a sweep: how much of the whole budget is spent, time to go, each run in progress, and failures.

    Args:
        runs: All of them; their budgets are what the bar of all runs counts.
        quiet: Show nothing.
    """

    def __init__(self, runs: Sequence[Run], *, quiet: bool) -> None:
        self._count = len(runs)
        self._also = distinguishing(runs)
        self._total = sum(_budget(run) for run in runs)
        self._done = 0
        self._began: float | None = None
        self._statuses: Counter[str] = Counter()
        self._slots: dict[int, _Slot] = {}
        console = Console(stderr=True)
        self._plain = not quiet and not console.is_terminal
        self._live = Progress(
            BarColumn(bar_width=20, table_column=Column(min_width=20)),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            transient=True,
            disable=quiet or self._plain,
            speed_estimate_period=SPEED_SECONDS,
        )
        self._all = self._live.add_task("starting", total=self._total)

    def __enter__(self) -> SweepProgress:
        if not self._live.disable:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._live.disable:
            self._live.stop()

    def started(self, slot: int, run: Run) -> None:
        """Show a run that begins, or begins again."""
        if self._began is None:
            self._began = time.monotonic()
        self._clear(slot)
        self._slots[slot] = _Slot(self._live.add_task(cell(run, self._also), total=_budget(run)), run)
        self._show()

    def event(self, slot: int, run: Run, event: events.Event) -> None:
        """Show how far a run is."""
        shown = self._slots[slot]
        if isinstance(event, events.RoundsDone):
            shown.byzantine = f"{event.rounds[-1].byzantine} Byzantine"
            shown.spent = min(event.rounds[-1].budget, _budget(run))
        elif isinstance(event, events.Evaluated):
            shown.score = f"gap {event.gap:.4g}" if event.gap is not None else f"accuracy {event.test_accuracy:.4f}"
        text = ", ".join(filter(None, (shown.score, shown.byzantine)))
        self._live.update(
            shown.task, completed=shown.spent, description=f"{text}; {cell(run, self._also)}" if text else cell(run, self._also)
        )
        self._show()

    def ended(self, slot: int, outcome: Outcome) -> None:
        """Count a run; what fails is told at once."""
        self._statuses[outcome.status] += 1
        shown = self._slots.get(slot)
        score = shown.score if shown is not None and shown.run is outcome.run else ""
        if outcome.status in ("finished", "diverged", "failed") and score:
            self._done += _budget(outcome.run)
        else:  # nothing was computed of it, and the time to go is not to be judged by it
            self._total -= _budget(outcome.run)
        if shown is not None and shown.run is outcome.run:
            self._clear(slot)
        self._show()
        if outcome.status == "failed":
            self._tell(f"failed: {cell(outcome.run, self._also)}: {(outcome.message or '').strip().partition(chr(10))[0]}")
        elif self._plain and outcome.status in ("finished", "diverged"):
            self._tell(": ".join(filter(None, (f"{cell(outcome.run, self._also)}: {outcome.status}", score))))

    def _clear(self, slot: int) -> None:
        if slot in self._slots:
            self._live.remove_task(self._slots.pop(slot).task)

    def _show(self) -> None:
        spent = self._done + sum(shown.spent for shown in self._slots.values())
        self._live.update(self._all, completed=spent, total=self._total, description=self._summary())

    def _summary(self) -> str:
        failed = self._statuses["failed"]
        return f"{self._statuses.total()} of {self._count} runs" + (f", {failed} failed" if failed else "")

    def _tell(self, text: str) -> None:
        """Print a line above the bars, or a plain one with the time to go."""
        if not self._live.disable:
            self._live.console.print(text, markup=False, highlight=False)
        elif self._plain:
            try:
                print(f"{self._statuses.total()}/{self._count}: {text}{self._to_go()}", file=sys.stderr, flush=True)
            except OSError:  # whoever read the progress has left; the sweep goes on
                self._plain = False

    def _to_go(self) -> str:
        left = self._total - self._done
        if self._began is None or not self._done or not left:
            return ""
        return f", about {duration((time.monotonic() - self._began) / self._done * left)} to go"


def _budget(run: Run) -> int:
    return run.spec.budget or 0
