"""A search in progress: its trials become runs of the one scheduler, and their results become values of the study."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy import Connection, Engine

from dynabro_cli.errors import RunError, SpecError
from dynabro_cli.events import Evaluated, Event, Started
from dynabro_cli.executors._api import Failure, Listener, Outcome, Status
from dynabro_cli.executors.backend import Places
from dynabro_cli.executors.ledger import Job, Ledger, Slot
from dynabro_cli.executors.scheduler import Scheduler
from dynabro_cli.executors.sweep import slots_of
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.search.file import Search, as_document, as_yaml, parse_search
from dynabro_cli.search.study import Study
from dynabro_cli.store import trials
from dynabro_cli.store.kept_connection import KeptConnection, transact
from dynabro_cli.store.ownership import heartbeats
from dynabro_cli.store.read.searches import GOALS, Trial, ends_of, evaluated, mean_value, text_of, trials_of
from dynabro_cli.store.side_files import SideFiles
from dynabro_cli.store.sweep_entry import SweepEntry


class Watcher(Listener, Protocol):
    """Receiver of what happens to trials, beside the events of their runs."""

    def trial_began(self, name: str, number: int, choices: Mapping[str, str]) -> None:
        """A trial begins, or is continued; ``choices`` are its fields of the space."""
        ...

    def trial_ended(self, name: str, trial: Trial) -> None:
        """A trial has ended."""
        ...

    def repeating(self, name: str, runs: int) -> None:
        """All trials of a search have ended, and the best ones are run with other seeds."""
        ...


@dataclass
class _Open:
    """A trial in progress here.

    Attributes:
        number: Its number.
        runs: Its runs, one per seed.
        left: Keys of the runs that have not ended.
        steps: Number of evaluations reported for each run.
        status: The status that ends the trial; None while it is in progress.
    """

    number: int
    runs: Sequence[Run]
    left: set[str]
    steps: dict[str, int] = field(default_factory=dict)
    status: str | None = None


class StudyInProgress:
    """One search of a file: its study, its rows, and its open trials.

    Args:
        search: The file.
        study: The study.
        connection: The database.
        sweep_id: The command's row in ``sweeps``.
        watcher: Receives the trials.
        retry_failed: True to repeat the trials that have failed.
    """

    def __init__(
        self,
        search: Search,
        study: Study,
        connection: KeptConnection,
        sweep_id: int,
        watcher: Watcher,
        *,
        retry_failed: bool = False,
    ) -> None:
        self._search, self._study, self._connection, self._watcher = search, study, connection, watcher
        self._sweep_id = sweep_id
        self._open: dict[int, _Open] = {}
        self._by_key: dict[str, list[_Open]] = {}
        self._done, self._since = False, 0

        def take_over(database: Connection) -> tuple[list[int], list[Trial]]:
            ours = trials.take_over(database, study.name, sweep_id, failed=retry_failed)
            rows = trials_of(database, study.name)
            trials.list_runs(database, sweep_id, [key for row in rows for key in row.run_keys])
            return ours, rows

        self._ours, rows = transact(connection, take_over)
        self._absorb(rows)

    def more(self) -> Sequence[Run]:
        """Return the runs of the next trial: one that a dead command has left, a new one, or the repetition of the best."""
        if self._done:
            return ()
        rows = self._read()
        if self._ours:
            number = self._ours.pop(0)
            row = next(row for row in rows if row.number == number)
            return self._begin(row.number, self._study.again(row, self._search.seeds), row.parameters)
        while (number := rows[-1].number + 1 if rows else self._since) < self._study.total:
            parameters, runs = self._study.propose(number)
            keys = [run.key for run in runs]
            begin = functools.partial(trials.begin, search=self._study.name, number=number, sweep_id=self._sweep_id)
            if transact(self._connection, functools.partial(begin, parameters=parameters, keys=keys)):
                return self._begin(number, runs, parameters)
            self._study.forget(number)  # another command was faster: the next proposal knows its trial
            rows = self._read()
        if any(row.status == "running" for row in rows):
            return ()
        self._done = True
        return self._repetitions()

    def _read(self) -> list[Trial]:
        """Report news to the study; return the trials from the first unfinished one on."""
        rows = transact(self._connection, lambda database: trials_of(database, self._study.name, self._since))
        self._absorb(rows)
        running = [row.number for row in rows if row.status == "running"]
        self._since = min(running, default=rows[-1].number + 1 if rows else self._since)
        return [row for row in rows if row.number >= self._since]

    def _absorb(self, rows: Sequence[Trial]) -> None:
        """Report the stored trials that the study does not know, with the values that the pruner has seen."""
        reports: dict[int, list[tuple[int, float]]] = {}
        fresh = [row for row in rows if row.number not in self._study]
        if self._search.pruner != "none" and fresh:
            keys = [key for row in fresh for key in row.run_keys]
            values = transact(self._connection, lambda database: evaluated(database, keys, self._search.goal))
            for row in fresh:
                if row.number not in self._ours:  # those are reported when their runs resume
                    reports[row.number] = self._steps(row, values)
        self._study.absorb(rows, reports)

    def _begin(self, number: int, runs: Sequence[Run], parameters: Mapping[str, object]) -> Sequence[Run]:
        trial = _Open(number, runs, {run.key for run in runs})
        self._open[number] = trial
        for run in runs:
            self._by_key.setdefault(run.key, []).append(trial)
        self._watcher.trial_began(self._study.name, number, self._study.choices(parameters))
        return runs

    def _repetitions(self) -> Sequence[Run]:
        """Return the runs of the best trials with the seeds of ``then``; several trials may be one configuration."""
        then = self._search.then
        if then is None:
            return ()
        rows = transact(self._connection, lambda database: trials_of(database, self._study.name))
        runs = {run.key: run for row in best_of(self._search, rows) for run in self._study.again(row, then.seeds)}
        transact(self._connection, lambda database: trials.list_runs(database, self._sweep_id, list(runs)))
        self._watcher.repeating(self._study.name, len(runs))
        return list(runs.values())

    def wanted(self, run: Run) -> bool | None:
        """Return False if all trials of a run have ended early, None if it belongs to no trial here."""
        found = self._by_key.get(run.key)
        return any(trial.status is None for trial in found) if found else None

    def event(self, run: Run, event: Event) -> bool:
        """Report an evaluation of a run to the pruner; return True if no trial needs the run any more."""
        if self._search.pruner == "none" or run.key not in self._by_key:
            return False
        if isinstance(event, Evaluated):
            value = getattr(event, GOALS[self._search.goal].evaluated)
            self._report(run.key, [math.nan if value is None else value])
        return not self.wanted(run)

    def catch_up(self, key: str) -> None:
        """Report the stored evaluations of a run that is not made from its beginning."""
        if self._search.pruner != "none" and key in self._by_key:
            values = transact(self._connection, lambda database: evaluated(database, [key], self._search.goal))
            self._report(key, values.get(key, []))

    def _report(self, key: str, values: Sequence[float]) -> None:
        """Report evaluations of a run, which follow those reported before, to its trials."""
        for trial in self._by_key[key]:
            place = [run.key for run in trial.runs].index(key)
            for value in values if trial.status is None else ():
                trial.steps[key] = trial.steps.get(key, 0) + 1
                if self._study.prunes(trial.number, self._step(place, trial.steps[key]), value):
                    trial.status = "pruned"
                    break

    def _steps(self, row: Trial, values: Mapping[str, Sequence[float]]) -> list[tuple[int, float]]:
        """Return steps and values of a stored trial."""
        own = [values.get(key, []) for key in row.run_keys]
        return [(self._step(place, n), value) for place, some in enumerate(own) for n, value in enumerate(some, 1)]

    def _step(self, place: int, evaluation: int) -> int:
        """Return the step of the n-th evaluation of a trial's run: the runs of a trial follow one another, seed by seed."""
        return place * self._study.steps_a_run + evaluation

    def ended(self, outcome: Outcome) -> None:
        """Note the end of a run, and end the trials that have no other run left."""
        key = outcome.run.key
        if outcome.failure is not None and outcome.failure.expected and key in self._by_key:
            self._refuse(key, outcome.failure)
        if outcome.status == "stored":
            self.catch_up(key)
        for trial in self._by_key.get(key, ()):
            trial.left.discard(key)
            if outcome.status == "failed":
                trial.status = "failed"
            if trial.number in self._open and (trial.status is not None or not trial.left):
                self._settle(trial)

    def _refuse(self, key: str, failure: Failure) -> None:
        """Raise the error of a run that could not start here, for lack of data or memory, and so is not stored.

        All other trials would fail, too. The trial stays ``running``, and the next command continues it.
        """
        stored = transact(self._connection, lambda database: ends_of(database, [key], self._search.goal))
        if key not in stored or stored[key].status != "failed":
            error = RunError(f"{failure.reason} (trials that have ended are stored; the same command continues)")
            error.exit_code = failure.exit_code
            raise error

    def _settle(self, trial: _Open) -> None:
        """Store the end of a trial, then report it to the study and the watcher."""
        del self._open[trial.number]
        keys = [run.key for run in trial.runs]

        def end(database: Connection) -> tuple[str, float | None, Trial]:
            status, value = trial.status, None
            if status is None:
                ends = ends_of(database, keys, self._search.goal)
                value = mean_value(keys, ends, skip_diverged=self._search.diverged == "skip")
                status = "failed" if value is None else "finished"
            trials.end(database, self._study.name, trial.number, status, value)
            return status, value, trials_of(database, self._study.name, trial.number)[0]

        trial.status, value, row = transact(self._connection, end)
        self._study.tell(trial.number, trial.status, value)
        self._watcher.trial_ended(self._study.name, row)


class SearchLedger(Ledger):
    """A ledger whose runs are chosen by the results so far. Arguments as of ``Ledger``, and the searches of the file."""

    searches: Sequence[StudyInProgress] = ()
    _idle = False

    def more(self) -> Sequence[Run]:
        """Return the runs of the next trial of the first search that has one. If no search has one, wait for a run to end."""
        if not self._idle:
            for one in self.searches:
                if runs := one.more():
                    return runs
            self._idle = True
        return ()

    def wanted(self, run: Run) -> bool:
        """Return False if all trials of the run have ended."""
        return not any(one.wanted(run) is False for one in self.searches)

    def prunes(self, run: Run, event: Event) -> bool:
        """Return True if the pruner ends the trials of the run."""
        found = [one.event(run, event) for one in self.searches]  # each of them learns of the event
        return any(found)

    def record(self, slot: Slot, event: Event) -> None:
        """Store an event; a run that resumes has evaluations that the pruner must know."""
        super().record(slot, event)
        if isinstance(event, Started) and event.resumed is not None and slot.job is not None:
            for one in self.searches:
                one.catch_up(slot.job.run.key)

    def _note(self, number: int, job: Job, status: Status, message: str | None, failure: Failure | None = None) -> None:
        super()._note(number, job, status, message, failure)
        self._idle = False
        for one in self.searches if not self.stopping else ():
            one.ended(self.outcomes[job.place])


def best_of(search: Search, rows: Sequence[Trial], count: int | None = None) -> list[Trial]:
    """Return the best finished trials, best first; by default the number that ``then`` repeats. Equal ones stay in order."""
    count = (search.then.best if search.then else 1) if count is None else count
    sign = -1 if search.maximize else 1
    found: dict[tuple[str, ...], Trial] = {}
    for row in sorted((row for row in rows if row.status == "finished"), key=lambda row: (sign * worth(row), row.number)):
        found.setdefault(row.run_keys, row)  # a configuration that was proposed twice counts once
    return list(found.values())[:count]


def worth(trial: Trial) -> float:
    """Return the value of a finished trial; infinity if the database has none."""
    return math.inf if trial.value is None else trial.value


def check_same(search: Search, database: KeptConnection) -> None:
    """Raise SpecError if trials of another search are stored under this name."""
    before = transact(database, lambda connection: text_of(connection, search.sweep.name))
    if before is not None and parse_search(before, search.sweep.name).question != search.question:
        raise SpecError(
            f"name={search.sweep.name}: another search is stored under this name, with other fixed fields, space, goal or "
            "seeds. Try: --name with another name"
        )


def conduct(
    search: Search,
    engine: Engine,
    places: Places,
    watcher: Watcher,
    *,
    runs: int,
    files: SideFiles | None = None,
) -> None:
    """Make the trials of a search until none is left. Killed at any moment, the same call continues.

    Args:
        search: The search.
        engine: A database opened for writing.
        places: Where the runs are made.
        watcher: Receives the events of runs, and the trials.
        runs: Number of runs of all searches of the file.
        files: Checkpoints and logs; by default beside the database.

    Raises:
        SpecError: Another search is stored under this name.
        RunError: A run could not start here, as without its data.
        DynabroError: As ``make_all``.
    """
    options, files, kept = places.options, files or SideFiles.of(engine.url), KeptConnection(engine)
    check_same(search, kept)
    slots = slots_of(kept, places, places.most, files)
    entry = SweepEntry(
        engine,
        name=search.sweep.name,
        runs=runs,
        to_make={},
        jobs=options.jobs or 1,
        executor=options.executor,
        yaml=as_yaml(as_document(search)),
        stored_before=0,
    )
    ledger = SearchLedger([], options, files, watcher)
    with entry, heartbeats(engine, [*(slot.recorder.owner for slot in slots), entry.owner]):
        ledger.searches = [
            StudyInProgress(search, Study(search, name, fixed), kept, entry.id or 0, watcher, retry_failed=options.retry_failed)
            for name, fixed in search.points()
        ]
        Scheduler(ledger, slots, options, places.backend, kept).run()
        entry.complete = True
