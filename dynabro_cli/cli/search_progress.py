"""Progress of a search on standard error: trials done, the best value so far with its choices,
remaining time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from dynabro_cli import events
from dynabro_cli.cli.output import warn
from dynabro_cli.cli.progress import Display, bar_columns
from dynabro_cli.cli.terminal import one_line
from dynabro_cli.errors import first_line
from dynabro_cli.search.conduct import worth

if TYPE_CHECKING:
    from dynabro_cli.executors._api import Outcome
    from dynabro_cli.experiment.resolve import Run
    from dynabro_cli.search.file import Search
    from dynabro_cli.store.read.searches import Trial


class TrialsProgress(Display):
    """Show the trials of a search.

    Args:
        search: The search.
        trials: Number of trials of all its searches.
        ended: Number of them that ended earlier.
        quiet: Show nothing.
    """

    def __init__(self, search: Search, trials: int, ended: int, *, quiet: bool) -> None:
        super().__init__(*bar_columns(trials), quiet=quiet)
        self._search, self._trials, self._ended = search, trials, min(ended, trials)
        self._best: dict[str, Trial] = {}
        self._choices: dict[tuple[str, int], str] = {}
        self._waiting = 0
        self._all = self._live.add_task("starting", total=trials)

    def trial_began(self, name: str, number: int, choices: Mapping[str, str]) -> None:
        """Note a trial's choices."""
        if not self._choices:
            self._restart(self._all, self._ended, self._trials)
        self._choices[name, number] = ", ".join(choices.values())

    def trial_ended(self, name: str, trial: Trial) -> None:
        """Count a trial; show the best one."""
        self._ended += 1
        self._trials = max(self._trials, self._ended)
        best, sign = self._best.get(name), -1 if self._search.maximize else 1
        if trial.status == "finished" and (
            best is None or sign * worth(trial) < sign * worth(best)
        ):
            self._best[name] = best = trial
        word = f"{worth(trial):.4g}" if trial.status == "finished" else trial.status
        told = (
            ""
            if best is None
            else f"best {worth(best):.4g} (trial {best.number}: {self._label(name, best)})"
        )
        self._live.update(self._all, completed=self._ended, total=self._trials, description=told)
        lead = (
            f"{self._ended}/{self._trials}: {name}: trial {trial.number}: {word}, "
            f"{self._label(name, trial)}"
        )
        self._print("; ".join(filter(None, (lead, told))) + self._to_go(self._all))

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
            self._warn_once(event.notes)
        if isinstance(event, events.Started) and event.unused is not None:
            warn(f"{event.unused}; the run starts from the beginning")

    def ended(self, slot: int, outcome: Outcome) -> None:
        """Report a failure at once."""
        if outcome.status == "failed":
            self._tell(f"failed: {first_line(outcome.message or '')}")

    def waiting(self, runs: int) -> None:
        """Report that the remaining runs are in progress in other processes."""
        if self._waiting != runs:
            self._waiting = runs
            self._tell(f"waiting for {runs} runs that are in progress elsewhere")

    def _tell(self, text: str) -> None:
        """Print a line above the bar, or a plain line."""
        if not self._live.disable:
            self._live.console.print(Text(one_line(text)))
        else:
            self._print(f"{self._ended}/{self._trials}: {text}")
