"""One search in progress: its trials become runs, and their results become values of the study."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection

from dynabro_cli.core.errors import RunError
from dynabro_cli.core.events import Evaluated, Event
from dynabro_cli.experiment.grid.goals import GOALS
from dynabro_cli.experiment.grid.search import SEEDS, Search
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors._api import Failure, Listener, Outcome
from dynabro_cli.runs.search.study import Study, repeated_of
from dynabro_cli.runs.store.read.searches import Trial, curves_of, ends_of, mean_value, trials_of
from dynabro_cli.runs.store.write import trials
from dynabro_cli.runs.store.write.transactions import KeptConnection, transact

P = ParamSpec("P")
T = TypeVar("T")


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
class _OpenTrial:
    """A trial in progress here.

    Attributes:
        number: Its number.
        runs: Its runs, one per seed.
        unfinished: Keys of the runs that have not ended.
        held: Its other runs, if its first one decides about them.
        steps: Number of evaluations reported for each run.
        status: The status that ends the trial; None while it is in progress.
    """

    number: int
    runs: Sequence[Run]
    unfinished: set[str]
    held: Sequence[Run] = ()
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
        rerun_changed: True to repeat the trials with a run that was made with other code of a
            component.

    Attributes:
        elsewhere: Number of runs of trials that are in progress in other commands, if no trial is
            left to make here.
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
        rerun_changed: bool = False,
    ) -> None:
        self._search, self._study = search, study
        self._connection, self._watcher = connection, watcher
        self._sweep_id = sweep_id
        self._open: dict[int, _OpenTrial] = {}
        self._by_key: dict[str, list[_OpenTrial]] = {}
        # the held runs of trials that their first run did not end
        self._freed: list[Sequence[Run]] = []
        self._done, self._since = False, 0
        self.elsewhere = 0
        study.check(self._do(trials_of, study.name))

        def take_over(database: Connection) -> tuple[list[int], list[Trial]]:
            ours = trials.take_over(
                database, study.name, sweep_id, failed=retry_failed, changed=rerun_changed
            )
            rows = trials_of(database, study.name)
            trials.add_to_list(database, sweep_id, [key for row in rows for key in row.run_keys])
            return ours, rows

        self._ours, rows = self._do(take_over)
        self._absorb(rows)

    def _do(
        self, step: Callable[Concatenate[Connection, P], T], *given: P.args, **named: P.kwargs
    ) -> T:
        """Return what ``step`` returns, given a connection to the database, in one transaction."""
        return transact(self._connection, lambda database: step(database, *given, **named))

    def more(self) -> Sequence[Run]:
        """Return the runs of the next trial: one that a dead command has left, a new one, or the
        repetition of the best.
        """
        if self._freed:
            return self._freed.pop(0)
        if self._done:
            return ()
        rows, self.elsewhere = self._read(), 0
        if self._ours:
            return self._resume(rows)
        while self._study.wants(number := rows[-1].number + 1 if rows else self._since):
            proposal = self._study.propose(number)
            if proposal is None:
                continue
            parameters, runs = proposal
            keys = [run.key for run in runs]
            if self._do(trials.begin, self._study.name, number, self._sweep_id, parameters, keys):
                return self._begin(number, runs, parameters)
            # another command was faster: the next proposal knows its trial
            self._study.forget(number)
            rows = self._read()
        running = [row for row in rows if row.status == "running"]
        if running:
            ours = self._do(trials.take_over, self._study.name, self._sweep_id)
            self._ours = [number for number in ours if number not in self._open]
            if self._ours:
                return self._resume(rows)
            self.elsewhere = sum(
                len(row.run_keys) for row in running if row.number not in self._open
            )
            return ()
        self._done = True
        return self._repetitions()

    def _resume(self, rows: Sequence[Trial]) -> Sequence[Run]:
        """Return the runs of a trial that another command has left, or that is repeated."""
        number = self._ours.pop(0)
        row = next(row for row in rows if row.number == number)
        return self._begin(row.number, self._study.again(row, self._search.seeds), row.parameters)

    def _read(self) -> list[Trial]:
        """Report news to the study; return the trials from the first unfinished one on."""
        rows = self._do(trials_of, self._study.name, self._since)
        self._absorb(rows)
        running = [row.number for row in rows if row.status == "running"]
        self._since = min(running, default=rows[-1].number + 1 if rows else self._since)
        return [row for row in rows if row.number >= self._since]

    def _absorb(self, rows: Sequence[Trial]) -> None:
        """Report the stored trials that the study does not know, with the values that the pruner
        has seen.
        """
        reports: dict[int, list[tuple[int, float]]] = {}
        fresh = [row for row in rows if row.number not in self._study]
        # the others are reported when their runs resume
        ended = [row for row in fresh if row.number not in self._ours]
        if self._search.prunes_within_runs and ended:
            keys = [key for row in ended for key in row.run_keys]
            values = self._do(curves_of, keys, self._search.goal)
            reports = {row.number: self._steps(row, values) for row in ended}
        elif self._search.pruner == SEEDS and ended:
            ends = self._do(ends_of, [row.run_keys[0] for row in ended], self._search.goal)
            first = {row.number: ends.get(row.run_keys[0]) for row in ended}
            reports = {
                number: [(1, end.value)]
                for number, end in first.items()
                if end is not None and end.value is not None
            }
        self._study.absorb(rows, reports)

    def _begin(
        self, number: int, runs: Sequence[Run], parameters: Mapping[str, object]
    ) -> Sequence[Run]:
        trial = _OpenTrial(number, runs, {run.key for run in runs})
        if self._search.pruner == SEEDS and not self._study.is_first(parameters):
            trial.held = runs[1:]
        self._open[number] = trial
        for run in runs:
            self._by_key.setdefault(run.key, []).append(trial)
        self._watcher.trial_began(self._study.name, number, self._study.choices(parameters))
        return runs[:1] if trial.held else runs

    def _repetitions(self) -> Sequence[Run]:
        """Return the runs of the best trials with the seeds of ``then``; several trials may be one
        configuration.
        """
        then = self._search.then
        if then is None:
            return ()
        rows = self._do(trials_of, self._study.name)
        repeated = repeated_of(self._search, self._study, rows)
        runs = {run.key: run for row in repeated for run in self._study.again(row, then.seeds)}
        self._do(trials.add_to_list, self._sweep_id, list(runs))
        self._watcher.repeating(self._study.name, len(runs))
        return list(runs.values())

    def wanted(self, run: Run) -> bool | None:
        """Return False if all trials of a run have ended early, None if it belongs to no trial
        here.
        """
        mine = self._by_key.get(run.key)
        return any(trial.status is None for trial in mine) if mine else None

    def event(self, run: Run, event: Event) -> bool:
        """Report an evaluation of a run to the pruner; return True if no trial needs the run any
        more.
        """
        if not self._search.prunes_within_runs or run.key not in self._by_key:
            return False
        if isinstance(event, Evaluated):
            value = getattr(event, GOALS[self._search.goal].evaluated)
            self._report(run.key, [math.nan if value is None else value])
        return not self.wanted(run)

    def catch_up(self, key: str) -> None:
        """Report the stored evaluations of a run that is not made from its beginning."""
        if self._search.prunes_within_runs and key in self._by_key:
            values = self._do(curves_of, [key], self._search.goal)
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
        return [
            (self._step(place, n), value)
            for place, key in enumerate(row.run_keys)
            for n, value in enumerate(values.get(key, []), 1)
        ]

    def _step(self, place: int, evaluation: int) -> int:
        """Return the step of the n-th evaluation of a trial's run: the runs of a trial follow one
        another, seed by seed.
        """
        return place * self._study.steps_a_run + evaluation

    def ended(self, outcome: Outcome) -> None:
        """Note the end of a run, and end the trials that have no other run left."""
        key = outcome.run.key
        if outcome.failure is not None and outcome.failure.expected and key in self._by_key:
            self._refuse(key, outcome.failure)
        if outcome.status == "stored":
            self.catch_up(key)
        for trial in self._by_key.get(key, ()):
            trial.unfinished.discard(key)
            if outcome.status == "failed":
                trial.status = "failed"
            elif self._search.pruner == SEEDS and trial.status is None and key == trial.runs[0].key:
                self._judge(trial, key)
            if trial.number in self._open and (trial.status is not None or not trial.unfinished):
                self._settle(trial)

    def _judge(self, trial: _OpenTrial, key: str) -> None:
        """Report a trial's first seed to the pruner; end the trial, or free its other runs."""
        end = self._do(ends_of, [key], self._search.goal).get(key)
        ends = (
            end is not None
            and end.value is not None
            and self._study.prunes(trial.number, 1, end.value)
        )
        if trial.held and ends:
            trial.status = "pruned"
        elif trial.held:
            self._freed.append(trial.held)
        trial.held = ()

    def _refuse(self, key: str, failure: Failure) -> None:
        """Raise the error of a run that could not start here, for lack of data or memory, and so is
        not stored.

        All other trials would fail, too. The trial stays ``running``, and the next command
        continues it.
        """
        stored = self._do(ends_of, [key], self._search.goal)
        if key not in stored or stored[key].status != "failed":
            error = RunError(
                f"{failure.reason} (trials that have ended are stored; the same command continues)"
            )
            error.exit_code = failure.exit_code
            raise error

    def _settle(self, trial: _OpenTrial) -> None:
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

        # stored first: the study is rebuilt from the rows, and after a kill these are all there is
        trial.status, value, row = self._do(end)
        self._study.tell(trial.number, trial.status, value)
        self._watcher.trial_ended(self._study.name, row)
