"""Progress of a run and of other long work on standard error: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, Task, TimeRemainingColumn
from rich.text import Text

from dynabro_cli import events
from dynabro_cli.cli.output import warn
from dynabro_cli.cli.pace import Pace, ToGo, in_words
from dynabro_cli.cli.terminal import note, one_line

if TYPE_CHECKING:
    from typing import Self

PLAIN_LINES = 20
PLAIN_SECONDS = 5.0


class Description(ProgressColumn):
    """A bar's description, which may come from a database or a file."""

    def render(self, task: Task) -> Text:
        """Return the description as plain text without control characters."""
        return Text(one_line(task.description), no_wrap=True, overflow="ellipsis")


class Display:
    """Standard error: live bars on a terminal, plain lines elsewhere, nothing if quiet.

    Args:
        columns: The columns of each bar.
        quiet: Show nothing.
        options: Further options of rich's ``Progress``.
    """

    def __init__(self, *columns: ProgressColumn, quiet: bool, **options: Any) -> None:
        console = Console(stderr=True)
        self._plain = not quiet and not console.is_terminal
        self._live = Progress(*columns, console=console, transient=True, disable=quiet or self._plain, **options)

    def __enter__(self) -> Self:
        if not self._live.disable:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._live.disable:
            self._live.stop()

    def _print(self, text: str) -> None:
        """Print a plain line, unless bars are shown."""
        if self._plain:
            self._plain = tell(text)


def tell(text: str) -> bool:
    """Print a line of progress; return False if its reader has left, which does not stop the run."""
    try:
        note(text, flush=True)
    except OSError:
        return False
    return True


def score(event: events.Evaluated) -> str:
    """Describe an evaluation in two words."""
    return f"gap {event.gap:.4g}" if event.gap is not None else f"accuracy {event.test_accuracy:.4f}"


class RunProgress(Display):
    """Show the events of one run: budget spent, accuracy or gap, current Byzantine workers, samples per second, remaining time.

    Args:
        budget: Gradient computations per worker in the whole run.
        samples: Samples of one computation of all workers.
        quiet: Show nothing.
    """

    def __init__(self, budget: int, samples: int, *, quiet: bool) -> None:
        super().__init__(
            SpinnerColumn("line"), BarColumn(bar_width=30), MofNCompleteColumn(), Description(), ToGo(self._to_go), quiet=quiet
        )
        self._budget, self._samples = budget, samples
        self._score = self._byzantine = ""
        self._pace = Pace()
        self._spent = self._before = self._lines = 0
        self._task = self._live.add_task("starting", total=budget)

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        if isinstance(event, events.Started):
            self._before = self._spent = 0 if event.resumed is None else event.resumed.budget_spent
            self._pace.begin(self._before)
            if event.unused is not None:
                warn(f"{event.unused}; the run starts from the beginning")
        elif isinstance(event, events.RoundsDone):
            self._byzantine = f"{event.rounds[-1].byzantine} Byzantine"
            self._show(event.rounds[-1].budget)
        elif isinstance(event, events.Evaluated):
            self._score = score(event)
            if not event.round:  # a budget that is spent before the first round has taken no time of the rounds
                self._before = event.budget
                self._pace.begin(self._before)
            self._show(event.budget)
            self._print_line(event.budget)

    def _show(self, spent: int) -> None:
        self._spent = spent
        self._pace.note(spent)
        self._live.update(self._task, completed=min(spent, self._budget), description=self._text(spent))

    def _text(self, spent: int) -> str:
        speed = (spent - self._before) * self._samples / max(self._pace.elapsed, 1e-9)
        return ", ".join(filter(None, (self._score, self._byzantine, f"{speed:,.0f} samples/s")))

    def _to_go(self) -> float | None:
        return self._pace.to_go(self._budget - self._spent)

    def _print_line(self, spent: int) -> None:
        """Print a plain line at every twentieth of the budget."""
        if self._plain and spent * PLAIN_LINES >= self._lines * self._budget:
            self._lines = spent * PLAIN_LINES // self._budget + 1
            seconds = self._to_go()
            left = "" if seconds is None else f", {in_words(seconds)} to go"
            self._print(f"{spent}/{self._budget}: {self._text(spent)}{left}")


class RunsProgress(Display):
    """Show the number of runs done, and the operation."""

    def __init__(self, what: str) -> None:
        super().__init__(BarColumn(bar_width=30), MofNCompleteColumn(), TimeRemainingColumn(), quiet=False)
        self._task = self._live.add_task(what, total=None)
        self._told = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Show the state; plain lines every few seconds only, so never for a short operation."""
        self._live.update(self._task, completed=done, total=total)
        if time.monotonic() - self._told >= PLAIN_SECONDS:
            self._told = time.monotonic()
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
