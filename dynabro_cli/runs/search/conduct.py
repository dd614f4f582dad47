"""Searches are made as sweeps are: the queue of the one scheduler asks them for runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, Engine

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import Event, Started
from dynabro_cli.experiment.grid.search import Search
from dynabro_cli.experiment.grid.search_file import as_document, parse_search
from dynabro_cli.experiment.grid.strict_yaml import as_yaml
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors._api import Outcome
from dynabro_cli.runs.executors.backend import Places
from dynabro_cli.runs.executors.ledger import Job, Ledger, Slot
from dynabro_cli.runs.executors.live_log import Logged
from dynabro_cli.runs.executors.scheduler import Scheduler
from dynabro_cli.runs.executors.sweep import slots_of
from dynabro_cli.runs.search.study import Study
from dynabro_cli.runs.search.study_in_progress import StudyInProgress, Watcher
from dynabro_cli.runs.store.ownership import heartbeats
from dynabro_cli.runs.store.read.searches import file_text, refuse_name_of_sweep
from dynabro_cli.runs.store.write.side_files import SideFiles
from dynabro_cli.runs.store.write.standing import changed, never
from dynabro_cli.runs.store.write.sweep_entry import SweepEntry
from dynabro_cli.runs.store.write.transactions import KeptConnection


class SearchLedger(Ledger):
    """A ledger whose runs are chosen by the results so far. Arguments as of ``Ledger``, and the
    searches of the file.
    """

    studies: Sequence[StudyInProgress] = ()
    _news = True
    """True if the searches may have another trial, because a run has ended here or elsewhere."""

    def more(self) -> Sequence[Run]:
        """Return the runs of the next trial of the first search that has one.

        If no search has one, wait for a run to end here, or for the trials of other commands: the
        repetitions come after them.
        """
        for study in self.studies if self._news else ():
            if runs := study.more():
                return runs
        self._news = False
        return ()

    def elsewhere(self) -> int:
        """Return the number of runs in progress elsewhere, with the runs of other commands'
        trials.
        """
        return super().elsewhere() + sum(study.elsewhere for study in self.studies)

    def revisit(self) -> None:
        """Check again what is in progress elsewhere, and ask the searches for another trial."""
        super().revisit()
        self._news = True

    def wanted(self, run: Run) -> bool:
        """Return False if all trials of the run have ended."""
        return not any(study.wanted(run) is False for study in self.studies)

    def prunes(self, run: Run, event: Event) -> bool:
        """Return True if the pruner ends the trials of the run."""
        useless = [study.event(run, event) for study in self.studies]  # all learn of the event
        return any(useless)

    def record(self, slot: Slot, event: Event) -> None:
        """Store an event; a run that resumes has evaluations that the pruner must know."""
        super().record(slot, event)
        if isinstance(event, Started) and event.resumed is not None and slot.job is not None:
            for study in self.studies:
                study.catch_up(slot.job.run.key)

    def _note(self, number: int, job: Job, outcome: Outcome) -> None:
        super()._note(number, job, outcome)
        self._news = True
        for study in self.studies if not self.stopping else ():
            study.ended(outcome)


def with_stored_spelling(search: Search, connection: Connection) -> Search:
    """Return the search, with the spelling of the stored search that it continues; itself if none
    is stored.

    The names of stored choices follow from the spelling, and proposals from the order of the axes.

    Raises:
        SpecError: A sweep, or another search, is stored under this name.
    """
    name = search.sweep.name
    text = file_text(connection, name)
    if text is None:
        refuse_name_of_sweep(connection, name)
        return search
    stored = parse_search(text, name)
    before, now = stored.question, search.question
    changed = [key for key in before | now if before.get(key, "") != now.get(key, "")]
    if changed:
        raise SpecError(
            f"name={name}: another search is stored under this name, which differs in "
            f"{' and '.join(changed)}. "
            "Try: dynabro search --name NEW"
        )
    for values in search.first:
        stored.space.parameters(values)
    sweep = replace(
        search.sweep, base=stored.sweep.base, exclude=stored.sweep.exclude, seeds=stored.sweep.seeds
    )
    return replace(search, sweep=sweep, axes=stored.axes)


def conduct(
    search: Search,
    engine: Engine,
    places: Places,
    watcher: Watcher,
    *,
    runs: int,
    files: SideFiles | None = None,
) -> Search:
    """Make the trials of a search until none is left; return ``with_stored_spelling``. Killed at
    any moment, the same call continues.

    Args:
        search: The search.
        engine: A database opened for writing.
        places: Where the runs are made.
        watcher: Receives the events of runs, and the trials.
        runs: Number of runs of all searches of the file.
        files: Checkpoints and logs; by default beside the database.

    Raises:
        SpecError: A sweep, or another search, is stored under this name; then nothing is stored.
        RunError: A run could not start here, as without its data.
        DynabroError: As ``make_all``.
    """
    options, files, kept = places.options, files or SideFiles.of(engine.url), KeptConnection(engine)

    def text(connection: Connection) -> str:
        nonlocal search
        search = with_stored_spelling(search, connection)
        return as_yaml(as_document(search))

    rerun = options.rerun == "changed"
    slots = slots_of(kept, places, places.most, files, repeat=changed if rerun else never)
    entry = SweepEntry(
        kept,
        name=search.sweep.name,
        runs=runs,
        listed={},
        jobs=options.jobs or 1,
        executor=options.executor,
        text=text,
    )
    logged = Logged(watcher, options)
    ledger = SearchLedger([], options, files, logged, sharing=places.sharing)
    with (
        contextlib.closing(kept),  # after the end of the sweep's row is written
        entry,
        heartbeats(engine, [*(slot.recorder.owner for slot in slots), entry.owner]),
        contextlib.closing(logged),
    ):
        again = {"retry_failed": options.retry_failed, "rerun_changed": rerun}
        ledger.studies = [
            StudyInProgress(
                search, Study(search, name, fixed), kept, entry.id or 0, watcher, **again
            )
            for name, fixed in search.points()
        ]
        Scheduler(ledger, slots, options, places.backend, kept).run()
        entry.complete = True
    return search
