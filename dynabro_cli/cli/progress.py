"""Progress of a run on standard error: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from dynabro_cli import events

PLAIN_LINES = 20


class RunProgress:
    """Shows the events of one run: budget spent, accuracy or gap, Byzantine workers now, samples a second, time to go.

    Args:
        budget: Gradient computations of each worker in the whole run.
        samples: Samples that one computation of all workers takes.
        quiet: Show nothing.
    """

    def __init__(self, budget: int, samples: int, *, quiet: bool) -> None:
        self._budget, self._samples = budget, samples
        self._score = self._byzantine = ""
        self._started = time.monotonic()
        self._lines = 0
        console = Console(stderr=True)
        self._plain = not quiet and not console.is_terminal
        self._live = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or self._plain,
        )
        self._task = self._live.add_task("starting", total=budget)

    def __enter__(self) -> RunProgress:
        if not self._live.disable:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._live.disable:
            self._live.stop()

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        if isinstance(event, events.Started):
            self._started = time.monotonic()
        elif isinstance(event, events.RoundsDone):
            self._byzantine = f"{event.rounds[-1].byzantine} Byzantine"
            self._show(event.rounds[-1].budget)
        elif isinstance(event, events.Evaluated):
            self._score = f"gap {event.gap:.4g}" if event.gap is not None else f"accuracy {event.test_accuracy:.4f}"
            self._show(event.budget)
            self._print_line(event.budget)

    def _show(self, spent: int) -> None:
        self._live.update(self._task, completed=min(spent, self._budget), description=self._text(spent))

    def _text(self, spent: int) -> str:
        elapsed = max(time.monotonic() - self._started, 1e-9)
        return ", ".join(filter(None, (self._score, self._byzantine, f"{spent * self._samples / elapsed:,.0f} samples/s")))

    def _print_line(self, spent: int) -> None:
        """Print a plain line at every twentieth of the budget."""
        if self._plain and spent * PLAIN_LINES >= self._lines * self._budget:
            self._lines = spent * PLAIN_LINES // self._budget + 1
            elapsed = time.monotonic() - self._started
            left = f", {elapsed / spent * max(self._budget - spent, 0):.0f} s to go" if spent else ""
            try:
                print(f"{spent}/{self._budget}: {self._text(spent)}{left}", file=sys.stderr, flush=True)
            except OSError:  # whoever read the progress has left; the run goes on
                self._plain = False
