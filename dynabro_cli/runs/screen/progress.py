"""Progress of runs, of searches and of other long work on standard error: live lines on a terminal,
plain lines elsewhere.
"""

from __future__ import annotations

import abc
import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from dynabro_cli.core import events
from dynabro_cli.core.errors import first_line, many
from dynabro_cli.experiment.label import cell, telling_apart
from dynabro_cli.runs.screen.output import duration, warn
from dynabro_cli.runs.screen.terminal import as_line, note

if TYPE_CHECKING:
    from typing import Self

    from dynabro_cli.experiment.grid.search import Search
    from dynabro_cli.experiment.resolve import Run
    from dynabro_cli.runs.executors._api import Outcome
    from dynabro_cli.runs.store.read.searches import Trial

PLAIN_LINES = 20
"""Plain lines of a single run."""
PLAIN_SECONDS = 5.0
"""Seconds between two plain lines of a count."""
SILENT_SECONDS = 30.0
"""Seconds without a plain line after which runs say how far they are."""
BAR, CLOCK, SHORTEST = 20, 7, 10
"""Letters of a bar and of the remaining time, and the fewest of a description."""
MOST_COUNTED = 999_999
"""A count whose end is not known yet has room for this number."""
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
            as_line(task.description),
            max(SHORTEST, shutil.get_terminal_size().columns - self._beside),
        )
        return Text(
            text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}",
            no_wrap=True,
        )


class Display(abc.ABC):
    """Standard error: live bars on a terminal, plain lines elsewhere, nothing if quiet.

    Args:
        total: The end of the main bar; None if it is not known yet.
        quiet: Show nothing.
    """

    def __init__(self, total: int | None, *, quiet: bool) -> None:
        console = Console(stderr=True)
        counts = 2 * len(str(total or MOST_COUNTED)) + 1
        self._plain = not quiet and not console.is_terminal
        self._printed = time.monotonic()
        self._warned: set[str] = set()
        self._waiting = 0
        self._live = Progress(
            BarColumn(bar_width=BAR, table_column=Column(min_width=BAR)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            Description(BAR + counts + CLOCK + 4),
            console=console,
            transient=True,
            disable=quiet or self._plain,
            speed_estimate_period=SPEED_SECONDS,
        )
        self._bar = self._live.add_task("starting", total=total)

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

    def waiting(self, runs: int) -> None:
        """Report that the remaining runs are in progress in other processes."""
        if self._waiting != runs:
            self._waiting = runs
            self._tell(f"waiting for {many(runs, 'run')} in progress elsewhere")

    @abc.abstractmethod
    def _place(self) -> str:
        """Return how much is done, for plain lines."""

    def _tell(self, text: str) -> None:
        """Print a line above the bars, or a plain line with the remaining time."""
        if self._live.disable:
            self._print(f"{self._place()}: {text}{self._to_go()}")
        else:
            self._live.console.print(Text(as_line(text)))

    def _print(self, text: str) -> None:
        """Print a plain line, unless bars are shown."""
        if self._plain:
            self._plain, self._printed = tell(text), time.monotonic()

    def _warn(self, event: events.Started, label: str = "") -> None:
        """Print the notes that no earlier run has had, and a checkpoint that is not used."""
        self._warn_once(event.notes)
        if event.unused is not None:
            warn(f"{label}{event.unused}; the run starts from the beginning")

    def _warn_once(self, lines: Iterable[str]) -> None:
        for line in lines:
            if line not in self._warned:
                self._warned.add(line)
                warn(line)

    def _to_go(self) -> str:
        """Return the remaining time in words; empty if it is unknown or over."""
        seconds = self._live.tasks[0].time_remaining
        words = f"{seconds:.0f} s" if seconds and seconds < 10 else duration(seconds or 0)
        return f", about {words} to go" if seconds else ""

    def _restart(self, done: int, total: int | None) -> None:
        """Measure the speed from now on; ``done`` was done earlier, and does not count for it."""
        self._live.reset(self._bar, completed=done, total=total)
        self._live.advance(self._bar, 0)  # the moment from which rich counts


def tell(text: str) -> bool:
    """Print a line of progress; return False if its reader has left, which does not stop the
    run.
    """
    try:
        note(text, flush=True)
    except OSError:
        return False
    return True


@dataclass
class _InProgress:
    """Display of the run in progress in a slot."""

    bar: TaskID
    run: Run
    spent: int = 0
    score: str = ""
    byzantine: str = ""


class RunsProgress(Display):
    """Show runs: share of the whole budget, remaining time, each run in progress, and failures.

    A single run has one line, with its samples per second; its plain lines follow its budget.
    The plain lines of several runs follow their ends. After half a minute without a line, there
    is one in any case.

    Args:
        runs: All runs, whose budgets the bar of all runs counts.
        quiet: Show nothing.
    """

    def __init__(self, runs: Sequence[Run], *, quiet: bool) -> None:
        self._total = sum(run.spec.budget for run in runs)
        super().__init__(self._total, quiet=quiet)
        self._count, self._single = len(runs), len(runs) == 1
        self._also = telling_apart([run.fields for run in runs])
        self._done = 0  # the budgets of runs that have ended
        self._begun, self._lines = False, 0
        self._statuses: Counter[str] = Counter()
        self._slots: dict[int, _InProgress] = {}

    def started(self, slot: int, run: Run) -> None:
        """Show a run that starts, or starts again."""
        if not self._begun:
            self._begun = True
            self._restart(self._spent(), self._total)
        self._clear(slot)
        bar = self._live.add_task(self._cell(run), total=run.spec.budget, visible=not self._single)
        self._slots[slot] = _InProgress(bar, run)
        self._show()

    def event(self, slot: int, run: Run, event: events.Event) -> None:
        """Show the progress of a run."""
        shown, budget = self._slots[slot], run.spec.budget
        if isinstance(event, events.Started):
            self._warn(event, "" if self._single else f"{self._cell(run)}: ")
            if event.resumed is not None:
                shown.spent = min(event.resumed.budget_spent, budget)
                self._restart(self._spent(), self._total)
        elif isinstance(event, events.RoundsDone):
            shown.byzantine = f"{event.rounds[-1].byzantine} Byzantine"
            shown.spent = min(event.rounds[-1].budget, budget)
        elif isinstance(event, events.Evaluated):
            gap = event.gap
            shown.score = f"accuracy {event.test_accuracy:.4f}" if gap is None else f"gap {gap:.4g}"
            shown.spent = min(event.budget, budget)
            # a budget that is spent before the first round has taken no time of the rounds
            if self._single and not event.round:
                self._restart(self._spent(), self._total)
        elif isinstance(event, events.Finished | events.Diverged):
            _, _, off = str(event.how.get("compile", "")).partition("triton; ")
            self._warn_once(off.split("; ") if off else ())  # kernels that were switched off
        text = ", ".join(filter(None, (shown.score, shown.byzantine)))
        self._live.update(
            shown.bar,
            completed=shown.spent,
            description=f"{text}; {self._cell(run)}" if text else self._cell(run),
        )
        self._show()
        due = shown.spent * PLAIN_LINES >= self._lines * budget
        if self._single and due and isinstance(event, events.Evaluated):
            self._lines = shown.spent * PLAIN_LINES // budget + 1
            self._print(f"{self._place()}: {self._summary()}{self._to_go()}")
        elif time.monotonic() - self._printed >= SILENT_SECONDS:
            far = f"{self._cell(run)}: {shown.spent}/{budget}"
            words = self._summary() if self._single else far
            self._print(f"{self._place()}: {words}{self._to_go()}")

    def ended(self, slot: int, outcome: Outcome) -> None:
        """Count a run; report a failure at once, unless the command does it next."""
        self._statuses[outcome.status] += 1
        shown = self._slots.get(slot)
        last, done, budget = "", 0, outcome.run.spec.budget
        if shown is not None and shown.run is outcome.run:
            last, done = shown.score, budget if outcome.status == "finished" else shown.spent
            self._clear(slot)
        self._done += done
        self._total -= budget - done  # the rest of the run takes no time
        self._show()
        if self._single:
            return
        if outcome.status == "failed":
            self._tell(f"failed: {self._cell(outcome.run)}: {first_line(outcome.message or '')}")
        elif self._plain and outcome.status in ("finished", "diverged"):
            self._tell(
                ": ".join(filter(None, (f"{self._cell(outcome.run)}: {outcome.status}", last)))
            )

    def _cell(self, run: Run) -> str:
        return cell(run.fields, self._also)

    def _clear(self, slot: int) -> None:
        if slot in self._slots:
            self._live.remove_task(self._slots.pop(slot).bar)

    def _show(self) -> None:
        self._live.update(
            self._bar, completed=self._spent(), total=self._total, description=self._summary()
        )

    def _spent(self) -> int:
        """The budget that is spent, including runs in progress."""
        return self._done + sum(shown.spent for shown in self._slots.values())

    def _summary(self) -> str:
        if self._single and self._slots:
            (shown,) = self._slots.values()
            spec, speed = shown.run.spec, self._live.tasks[0].speed or 0.0
            samples = f"{speed * spec.workers * spec.batch_size:,.0f} samples/s"
            return ", ".join(filter(None, (shown.score, shown.byzantine, samples)))
        failed = self._statuses["failed"]
        return f"{self._statuses.total()} of {self._count} runs" + (
            f", {failed} failed" if failed else ""
        )

    def _place(self) -> str:
        if self._single:
            return f"{self._spent()}/{self._total}"
        return f"{self._statuses.total()}/{self._count}"


class TrialsProgress(Display):
    """Show the trials of a search: trials done, the best value so far with its choices.

    Args:
        search: The search.
        trials: Number of trials of all its searches.
        ended: Number of them that ended earlier.
        quiet: Show nothing.
    """

    def __init__(self, search: Search, trials: int, ended: int, *, quiet: bool) -> None:
        super().__init__(trials, quiet=quiet)
        self._search, self._trials, self._ended = search, trials, min(ended, trials)
        self._best: dict[str, Trial] = {}
        self._choices: dict[tuple[str, int], str] = {}

    def trial_began(self, name: str, number: int, choices: Mapping[str, str]) -> None:
        """Note a trial's choices."""
        if not self._choices:
            self._restart(self._ended, self._trials)
        self._choices[name, number] = ", ".join(choices.values())

    def trial_ended(self, name: str, trial: Trial) -> None:
        """Count a trial; show the best one."""
        self._ended += 1
        self._trials = max(self._trials, self._ended)
        best, sign = self._best.get(name), -1 if self._search.maximize else 1
        if trial.status == "finished" and (
            best is None or sign * trial.value_or_inf < sign * best.value_or_inf
        ):
            self._best[name] = best = trial
        word = f"{trial.value_or_inf:.4g}" if trial.status == "finished" else trial.status
        summary = (
            ""
            if best is None
            else f"best {best.value_or_inf:.4g} (trial {best.number}: {self._label(name, best)})"
        )
        self._live.update(self._bar, completed=self._ended, total=self._trials, description=summary)
        lead = f"{self._place()}: {name}: trial {trial.number}: {word}, {self._label(name, trial)}"
        self._print("; ".join(filter(None, (lead, summary))) + self._to_go())

    def repeating(self, name: str, runs: int) -> None:
        """Report that the best trials are repeated."""
        if runs:
            self._tell(f"{name}: the best trials are repeated with other seeds, {runs} runs")

    def _label(self, name: str, trial: Trial) -> str:
        return self._choices.get((name, trial.number), "")

    def started(self, slot: int, run: Run) -> None:
        """Show nothing: the trial has been shown."""

    def event(self, slot: int, run: Run, event: events.Event) -> None:
        """Report a checkpoint that is not used, and notes."""
        if isinstance(event, events.Started):
            self._warn(event)

    def ended(self, slot: int, outcome: Outcome) -> None:
        """Report a failure at once."""
        if outcome.status == "failed":
            self._tell(f"failed: {first_line(outcome.message or '')}")

    def _place(self) -> str:
        return f"{self._ended}/{self._trials}"


class CountProgress(Display):
    """Show a count, without plain lines for what is done within seconds.

    Args:
        what: What is counted.
        quiet: Show nothing.
    """

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        super().__init__(None, quiet=quiet)
        self._what = what
        self._count = f"0 {what}"

    def begin(self, part: str) -> None:
        """Count for another part of the work."""
        self._restart(0, None)
        self._live.update(self._bar, description=part)
        self._print(part)

    def __call__(self, done: int, total: int) -> None:
        """Show the count."""
        self._live.update(self._bar, completed=done, total=total)
        self._count = f"{done}/{total} {self._what}"
        if time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._print(self._place())

    def _place(self) -> str:
        return self._count
