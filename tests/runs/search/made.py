"""Searches of a test: made in this process, watched, and read back."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from dynabro_cli.core.events import Event
from dynabro_cli.experiment.grid.search import Search
from dynabro_cli.experiment.grid.search_file import parse_search
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors import backends
from dynabro_cli.runs.executors._api import Options, Outcome
from dynabro_cli.runs.search.conduct import conduct
from dynabro_cli.runs.search.outlook import outlook
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.read.searches import Trial

SMALL = """
name: small
base: {task: quadratic, method: momentum, aggregator: cwmed, budget: 20}
search:
  attack: [sf, "shift:lambda={0.1..30 log}"]
  switching: [static, "periodic:K={1..50 int log}"]
maximize: final_gap
trials: 14
seeds: 0..1
then: {seeds: 0..2, best: 2}
"""


class EndedError(Exception):
    """Error that ends a search in a test."""


@dataclass
class Watch:
    """Listener that keeps everything it receives, and ends the search at an event."""

    end_at: int | None = None
    events: int = 0
    trials: list[Trial] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)

    def _count(self) -> None:
        self.events += 1
        if self.events == self.end_at:
            raise EndedError

    def started(self, slot: int, run: Run) -> None:
        self._count()

    def event(self, slot: int, run: Run, event: Event) -> None:
        self._count()

    def ended(self, slot: int, outcome: Outcome) -> None:
        self.statuses.append(outcome.status)
        self._count()

    def waiting(self, runs: int) -> None:
        raise AssertionError(f"{runs} runs are waited for")

    def trial_began(self, name: str, number: int, choices: Mapping[str, str]) -> None:
        self._count()

    def trial_ended(self, name: str, trial: Trial) -> None:
        self.trials.append(trial)
        self._count()

    def repeating(self, name: str, runs: int) -> None:
        self.repeated.append(runs)


def small(*pairs: tuple[str, str]) -> Search:
    """The small search with some of its text replaced."""
    whole = SMALL
    for old, new in pairs:
        assert old in whole
        whole = whole.replace(old, new)
    return parse_search(whole, "small.yaml")


def make(search: Search, path: Path | str, watch: Watch | None = None, **options: Any) -> Watch:
    """Make a search in this process, or as much of it as ``watch`` lets it."""
    # with torch, whose many objects are not searched for garbage after every run
    import dynabro_cli.simulation.setup

    assert dynabro_cli.simulation.setup
    gc.freeze()
    watch, ahead, engine = watch or Watch(), outlook(search), open_for_writing(str(path))
    how = Options(**{"jobs": 0, "sweep": search.sweep.name} | options)
    try:
        with backends.opened(how, ahead.runs) as places_for:
            conduct(search, engine, places_for(ahead.samples), watch, runs=ahead.runs)
    except EndedError:
        pass
    finally:
        engine.dispose()
    return watch


def rows(
    path: Path | str,
    sql: str = "SELECT search, number, status, parameters, run_keys, value FROM trials ORDER "
    "BY number",
) -> list[Any]:
    """Rows of the database, by default all trials, without the command that made them."""
    engine: Engine = open_for_writing(str(path))
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(sql))]
    engine.dispose()
    return found
