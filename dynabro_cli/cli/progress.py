"""Progress of a run and of other long work on standard error: a live line on a terminal, plain
lines elsewhere.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from dynabro_cli import events
from dynabro_cli.cli.output import duration, warn
from dynabro_cli.cli.terminal import note, one_line
from dynabro_cli.errors import first_line
from dynabro_cli.experiment.label import cell, telling_apart

if TYPE_CHECKING:
    from typing import Self

    from dynabro_cli.executors._api import Outcome
    from dynabro_cli.experiment.complete import CompleteSpec
    from dynabro_cli.experiment.resolve import Run

PLAIN_LINES = 20
PLAIN_SECONDS = 5.0
BAR, CLOCK, SHORTEST = 20, 7, 10
"""Letters of a bar and of the remaining time, and the fewest of a description."""
SPEED_SECONDS = 120.0
"""Seconds over which the speed is averaged that gives the remaining time."""


class Description(ProgressColumn):
    """A bar's description, which may come from a database or a file.

    Args:
        beside: Letters of the other columns: the description is cut, so that bars, counts and
            remaining time are whole.
    """

    def __init__(self, beside: int = 0) -> None:
        super().__init__(Column(no_wrap=True))
        self._beside = beside

    def render(self, task: Task) -> Text:
        """Return the description as plain text without control characters."""
        text, most = (
            one_line(task.description),
            max(SHORTEST, shutil.get_terminal_size().columns - self._beside),
        )
        return Text(
            text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}",
            no_wrap=True,
        )


def bar_columns(total: int, beside: int = 0) -> tuple[ProgressColumn, ...]:
    """Return a bar, counts up to ``total``, the remaining time, and a description that has the rest
    of the line.
    """
    counts = 2 * len(str(total)) + 1
    parts = (
        BarColumn(bar_width=BAR, table_column=Column(min_width=BAR)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
    )
    return (
        *parts,
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        Description(BAR + counts + CLOCK + 4 + beside),
    )


class Display:
    """Standard error: live bars on a terminal, plain lines elsewhere, nothing if quiet.

    Args:
        columns: The columns of each bar.
        quiet: Show nothing.
    """

    def __init__(self, *columns: ProgressColumn, quiet: bool) -> None:
        console = Console(stderr=True)
        self._plain = not quiet and not console.is_terminal
        self._warned: set[str] = set()
        self._live = Progress(
            *columns,
            console=console,
            transient=True,
            disable=quiet or self._plain,
            speed_estimate_period=SPEED_SECONDS,
        )

    def __enter__(self) -> Self:
        if not self._live.disable:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._live.disable:
            with contextlib.suppress(OSError):  # the terminal was closed
                self._live.stop()

    def _print(self, text: str) -> None:
        """Print a plain line, unless bars are shown."""
        if self._plain:
            self._plain = tell(text)

    def _warn_once(self, notes: Sequence[str]) -> None:
        """Print notes that no earlier run has had."""
        for line in notes:
            if line not in self._warned:
                self._warned.add(line)
                warn(line)

    def _to_go(self, bar: TaskID) -> str:
        """Return the remaining time of a bar in words; empty if it is unknown or over."""
        seconds = next(task.time_remaining for task in self._live.tasks if task.id == bar)
        words = f"{seconds:.0f} s" if seconds and seconds < 10 else duration(seconds or 0)
        return f", about {words} to go" if seconds else ""

    def _restart(self, bar: TaskID, done: int, total: int) -> None:
        """Measure the speed of a bar from now on; ``done`` was done earlier, and does not count for
        the speed.
        """
        self._live.reset(bar, completed=done, total=total)
        self._live.advance(bar, 0)  # the moment from which rich counts


def tell(text: str) -> bool:
    """Print a line of progress; return False if its reader has left, which does not stop the
    run.
    """
    try:
        note(text, flush=True)
    except OSError:
        return False
    return True


def score(event: events.Evaluated) -> str:
    """Describe an evaluation in two words."""
    return (
        f"gap {event.gap:.4g}" if event.gap is not None else f"accuracy {event.test_accuracy:.4f}"
    )


class RunProgress(Display):
    """Show the events of one run: budget spent, accuracy or gap, current Byzantine workers, samples
    per second, remaining time.

    Args:
        budget: Gradient computations per worker in the whole run.
        samples: Samples of one computation of all workers.
        quiet: Show nothing.
    """

    def __init__(self, budget: int, samples: int, *, quiet: bool) -> None:
        columns = SpinnerColumn("line"), *bar_columns(budget, beside=2)
        super().__init__(*columns, quiet=quiet)
        self._budget, self._samples = budget, samples
        self._score = self._byzantine = ""
        self._lines = 0
        self._task = self._live.add_task("starting", total=budget)

    @classmethod
    def of(cls, spec: CompleteSpec, *, quiet: bool) -> Self:
        """Return the display of a run."""
        return cls(spec.budget, spec.workers * spec.batch_size, quiet=quiet)

    def started(self, slot: int, run: Run) -> None:
        """Show nothing: the first event follows."""

    def event(self, slot: int, run: Run, event: events.Event) -> None:
        """Show one event."""
        if isinstance(event, events.Started):
            before = 0 if event.resumed is None else min(event.resumed.budget_spent, self._budget)
            self._restart(self._task, before, self._budget)
            if event.unused is not None:
                warn(f"{event.unused}; the run starts from the beginning")
            self._warn_once(event.notes)
        elif isinstance(event, events.RoundsDone):
            self._byzantine = f"{event.rounds[-1].byzantine} Byzantine"
            self._show(event.rounds[-1].budget)
        elif isinstance(event, events.Evaluated):
            self._score = score(event)
            # a budget that is spent before the first round has taken no time of the rounds
            if not event.round:
                self._restart(self._task, min(event.budget, self._budget), self._budget)
            self._show(event.budget)
            self._print_line(event.budget)

    def ended(self, slot: int, outcome: Outcome) -> None:
        """Show nothing: the command prints the result."""

    def waiting(self, runs: int) -> None:
        """Report that the run is in progress in another process."""
        tell("waiting for the run, which is in progress elsewhere")

    def _show(self, spent: int) -> None:
        self._live.update(self._task, completed=min(spent, self._budget), description=self._text())

    def _text(self) -> str:
        speed = (self._live.tasks[0].speed or 0.0) * self._samples
        return ", ".join(filter(None, (self._score, self._byzantine, f"{speed:,.0f} samples/s")))

    def _print_line(self, spent: int) -> None:
        """Print a plain line at every twentieth of the budget."""
        if self._plain and spent * PLAIN_LINES >= self._lines * self._budget:
            self._lines = spent * PLAIN_LINES // self._budget + 1
            self._print(
                f"{min(spent, self._budget)}/{self._budget}: "
                f"{self._text()}{self._to_go(self._task)}"
            )


@dataclass
class _InProgress:
    """Display of the run in progress in a slot."""

    task: TaskID
    run: Run
    spent: int = 0
    score: str = ""
    byzantine: str = ""


class SweepProgress(Display):
    """Show the runs of a sweep: share of the whole budget, remaining time, each run in progress,
    and failures.

    Args:
        runs: All runs, whose budgets the bar of all runs counts.
        quiet: Show nothing.
    """

    def __init__(self, runs: Sequence[Run], *, quiet: bool) -> None:
        super().__init__(*bar_columns(sum(run.spec.budget for run in runs)), quiet=quiet)
        self._count = len(runs)
        self._also = telling_apart([run.fields for run in runs])
        self._total = sum(run.spec.budget for run in runs)
        self._done = 0  # the budgets of runs that have ended
        self._begun, self._waiting = False, 0
        self._statuses: Counter[str] = Counter()
        self._slots: dict[int, _InProgress] = {}
        self._all = self._live.add_task("starting", total=self._total)

    def _cell(self, run: Run) -> str:
        return cell(run.fields, self._also)

    def started(self, slot: int, run: Run) -> None:
        """Show a run that starts, or starts again."""
        if not self._begun:
            self._begun = True
            self._restart(self._all, self._spent(), self._total)
        self._clear(slot)
        self._slots[slot] = _InProgress(
            self._live.add_task(self._cell(run), total=run.spec.budget), run
        )
        self._show()

    def event(self, slot: int, run: Run, event: events.Event) -> None:
        """Show the progress of a run."""
        shown = self._slots[slot]
        if isinstance(event, events.Started):
            self._warn_once(event.notes)
        if isinstance(event, events.Started) and event.unused is not None:
            self._tell(f"{self._cell(run)}: {event.unused}; the run starts from the beginning")
        elif isinstance(event, events.Started) and event.resumed is not None:
            shown.spent = min(event.resumed.budget_spent, run.spec.budget)
            self._restart(self._all, self._spent(), self._total)
        elif isinstance(event, events.RoundsDone):
            shown.byzantine = f"{event.rounds[-1].byzantine} Byzantine"
            shown.spent = min(event.rounds[-1].budget, run.spec.budget)
        elif isinstance(event, events.Evaluated):
            shown.score = score(event)
        text = ", ".join(filter(None, (shown.score, shown.byzantine)))
        self._live.update(
            shown.task,
            completed=shown.spent,
            description=f"{text}; {self._cell(run)}" if text else self._cell(run),
        )
        self._show()

    def ended(self, slot: int, outcome: Outcome) -> None:
        """Count a run; report a failure at once."""
        self._statuses[outcome.status] += 1
        shown = self._slots.get(slot)
        last, done, budget = "", 0, outcome.run.spec.budget
        if shown is not None and shown.run is outcome.run:
            last, done = shown.score, budget if outcome.status == "finished" else shown.spent
            self._clear(slot)
        self._done += done
        self._total -= budget - done  # the rest of the run takes no time
        self._show()
        if outcome.status == "failed":
            self._tell(f"failed: {self._cell(outcome.run)}: {first_line(outcome.message or '')}")
        elif self._plain and outcome.status in ("finished", "diverged"):
            self._tell(
                ": ".join(filter(None, (f"{self._cell(outcome.run)}: {outcome.status}", last)))
            )

    def waiting(self, runs: int) -> None:
        """Report that the remaining runs are in progress in other processes."""
        if self._waiting != runs:
            self._waiting = runs
            self._tell(f"waiting for {runs} runs that are in progress elsewhere")

    def _clear(self, slot: int) -> None:
        if slot in self._slots:
            self._live.remove_task(self._slots.pop(slot).task)

    def _show(self) -> None:
        self._live.update(
            self._all, completed=self._spent(), total=self._total, description=self._summary()
        )

    def _spent(self) -> int:
        """The budget that is spent, including runs in progress."""
        return self._done + sum(shown.spent for shown in self._slots.values())

    def _summary(self) -> str:
        failed = self._statuses["failed"]
        return f"{self._statuses.total()} of {self._count} runs" + (
            f", {failed} failed" if failed else ""
        )

    def _tell(self, text: str) -> None:
        """Print a line above the bars, or a plain line with the remaining time."""
        if not self._live.disable:
            self._live.console.print(Text(one_line(text)))
        else:
            self._print(f"{self._statuses.total()}/{self._count}: {text}{self._to_go(self._all)}")


class RunsProgress(Display):
    """Show the number of runs done, and the operation."""

    def __init__(self, what: str) -> None:
        super().__init__(
            BarColumn(bar_width=30), MofNCompleteColumn(), TimeRemainingColumn(), quiet=False
        )
        self._task = self._live.add_task(what, total=None)
        self._printed = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Show the state; plain lines every few seconds only, so never for a short operation."""
        self._live.update(self._task, completed=done, total=total)
        if time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            self._print(f"{done}/{total} runs")


class SearchProgress(Display):
    """Show which rule is searched, and how far."""

    def __init__(self, rules: int, *, quiet: bool) -> None:
        super().__init__(BarColumn(bar_width=30), MofNCompleteColumn(), Description(), quiet=quiet)
        self._task = self._live.add_task("", total=rules)
        self._begun = -1

    def begin(self, rule: str) -> None:
        """Start the search of a rule."""
        self._begun += 1
        self._live.update(self._task, completed=self._begun, description=rule)
        self._print(f"{rule}: searching")

    def __call__(self, done: int, total: int) -> None:
        """Show the number of finished climbs of the rule."""
        self._live.update(self._task, completed=self._begun + done / total)
