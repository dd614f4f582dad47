"""Progress of a sweep on standard error: one bar for all runs and one per run in progress; plain lines without a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TaskID
from rich.table import Column
from rich.text import Text

from dynabro_cli import events
from dynabro_cli.cli.pace import Pace, ToGo, in_words
from dynabro_cli.cli.progress import Description, Display, score
from dynabro_cli.cli.terminal import one_line
from dynabro_cli.errors import first_line
from dynabro_cli.experiment.label import cell, telling_apart

if TYPE_CHECKING:
    from dynabro_cli.executors._api import Outcome
    from dynabro_cli.experiment.resolve import Run


@dataclass
class _Slot:
    """Display of the run in progress in a slot."""

    task: TaskID
    run: Run
    work: float
    spent: int = 0
    score: str = ""
    byzantine: str = ""

    @property
    def done(self) -> float:
        """The share of its work that is done."""
        return self.work * self.spent / self.run.spec.budget


class SweepProgress(Display):
    """Show the runs of a sweep: share of the whole budget, remaining time, each run in progress, and failures.

    Args:
        runs: All runs. The bar of all runs counts their budgets, weighted by the relative time of a computation.
        quiet: Show nothing.
        seconds: Expected duration by key, as far as it is known.
    """

    def __init__(self, runs: Sequence[Run], *, quiet: bool, seconds: Mapping[str, float] | None = None) -> None:
        super().__init__(
            BarColumn(bar_width=20, table_column=Column(min_width=20)),
            MofNCompleteColumn(),
            ToGo(self._seconds_to_go),
            Description(table_column=Column(no_wrap=True, overflow="ellipsis")),
            quiet=quiet,
        )
        self._count = len(runs)
        self._also = telling_apart([run.fields for run in runs])
        self._seconds = seconds or {}
        known = [run for run in runs if run.key in self._seconds] if self._seconds else []
        self._speed = sum(self._seconds[run.key] for run in known) / max(1, sum(run.spec.budget for run in known))
        self._total = sum(map(self._work, runs))
        self._done = 0.0  # the work of runs that have ended
        self._pace = Pace()
        self._at_a_time = 1
        self._waiting = 0
        self._statuses: Counter[str] = Counter()
        self._slots: dict[int, _Slot] = {}
        self._all = self._live.add_task("starting", total=self._total)

    def _cell(self, run: Run) -> str:
        return cell(run.fields, self._also)

    def started(self, slot: int, run: Run) -> None:
        """Show a run that starts, or starts again."""
        self._pace.begin()
        self._clear(slot)
        self._slots[slot] = _Slot(self._live.add_task(self._cell(run), total=run.spec.budget), run, self._work(run))
        self._at_a_time = max(self._at_a_time, len(self._slots))
        self._show()

    def event(self, slot: int, run: Run, event: events.Event) -> None:
        """Show the progress of a run."""
        shown = self._slots[slot]
        if isinstance(event, events.Started) and event.unused is not None:
            self._tell(f"{self._cell(run)}: {event.unused}; the run starts from the beginning")
        elif isinstance(event, events.Started) and event.resumed is not None:
            self._skip(shown, event.resumed.budget_spent)
        elif isinstance(event, events.RoundsDone):
            shown.byzantine = f"{event.rounds[-1].byzantine} Byzantine"
            shown.spent = min(event.rounds[-1].budget, run.spec.budget)
        elif isinstance(event, events.Evaluated):
            shown.score = score(event)
            if not event.round and event.budget:  # spent before the first round, and faster than in rounds
                self._skip(shown, event.budget)
        text = ", ".join(filter(None, (shown.score, shown.byzantine)))
        self._live.update(
            shown.task, completed=shown.spent, description=f"{text}; {self._cell(run)}" if text else self._cell(run)
        )
        self._show()

    def ended(self, slot: int, outcome: Outcome) -> None:
        """Count a run; report a failure at once."""
        self._statuses[outcome.status] += 1
        shown = self._slots.get(slot)
        last, done, work = "", 0.0, self._work(outcome.run)
        if shown is not None and shown.run is outcome.run:
            last, done = shown.score, work if outcome.status == "finished" else shown.done
            self._clear(slot)
        self._done += done
        self._total -= work - done  # the rest of the run takes no time
        self._show()
        if outcome.status == "failed":
            self._tell(f"failed: {self._cell(outcome.run)}: {first_line(outcome.message or '')}")
        elif self._plain and outcome.status in ("finished", "diverged"):
            self._tell(": ".join(filter(None, (f"{self._cell(outcome.run)}: {outcome.status}", last))))

    def waiting(self, runs: int) -> None:
        """Report that the remaining runs are in progress in other processes."""
        if self._waiting != runs:
            self._waiting = runs
            self._tell(f"waiting for {runs} runs that are in progress elsewhere")

    def _clear(self, slot: int) -> None:
        if slot in self._slots:
            self._live.remove_task(self._slots.pop(slot).task)

    def _skip(self, shown: _Slot, spent: int) -> None:
        """Count a part of a run's budget as done without having taken time."""
        shown.spent = min(spent, shown.run.spec.budget)
        self._pace.begin(shown.done)

    def _show(self) -> None:
        self._pace.note(self._spent())
        self._live.update(self._all, completed=self._spent(), total=self._total, description=self._summary())

    def _spent(self) -> float:
        """The work that is done, including runs in progress."""
        return self._done + sum(shown.done for shown in self._slots.values())

    def _work(self, run: Run) -> float:
        """Return the budget of a run, or the known runs' budget in proportion to its expected time."""
        seconds = self._seconds.get(run.key) if self._seconds else None
        return run.spec.budget if seconds is None else seconds / self._speed

    def _summary(self) -> str:
        failed = self._statuses["failed"]
        return f"{self._statuses.total()} of {self._count} runs" + (f", {failed} failed" if failed else "")

    def _tell(self, text: str) -> None:
        """Print a line above the bars, or a plain line with the remaining time."""
        if not self._live.disable:
            self._live.console.print(Text(one_line(text)))
        else:
            self._print(f"{self._statuses.total()}/{self._count}: {text}{self._to_go()}")

    def _to_go(self) -> str:
        """Return the remaining time at the speed of late, in words; at the end fewer runs share the work."""
        seconds = self._seconds_to_go()
        return "" if not seconds else f", about {in_words(seconds)} to go"

    def _seconds_to_go(self) -> float | None:
        runs = self._count - self._statuses.total()
        at_a_time = min(runs, self._at_a_time)
        return None if not runs else self._pace.to_go((self._total - self._spent()) * self._at_a_time / at_a_time)
