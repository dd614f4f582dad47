"""Make runs on the places of a back end: recorders, queue, the sweep's row in ``sweeps``, and
heartbeats.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

from sqlalchemy import Connection, Engine

from dynabro_cli.core.machine.checkout import current_changes, current_commit
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors._api import Listener, Options, Outcome
from dynabro_cli.runs.executors.backend import Places
from dynabro_cli.runs.executors.ledger import Ledger, Slot
from dynabro_cli.runs.executors.live_log import Logged
from dynabro_cli.runs.executors.scheduler import Scheduler
from dynabro_cli.runs.store.ownership import heartbeats
from dynabro_cli.runs.store.read.searches import refuse_name_of_search
from dynabro_cli.runs.store.write.origin import Origin
from dynabro_cli.runs.store.write.recorder import Recorder, SaveModel
from dynabro_cli.runs.store.write.side_files import SideFiles
from dynabro_cli.runs.store.write.standing import Repeat, Standing, UpTo, never
from dynabro_cli.runs.store.write.sweep_entry import SweepEntry
from dynabro_cli.runs.store.write.transactions import KeptConnection


def make_all(
    runs: Sequence[Run],
    engine: Engine,
    places: Places,
    listener: Listener,
    standing: Standing,
    *,
    files: SideFiles | None = None,
    save_model: SaveModel | None = None,
) -> list[Outcome]:
    """Make every run, several at a time, and store them; return the outcomes in the order of
    ``runs``.

    A run that raises an exception, whose process dies, or that takes too long, is stored as failed,
    and the others continue. A run with a result in the database is not made again. The database is
    checked right before a run starts, and again when it is claimed, so that several sweeps can
    share a database. Runs in progress elsewhere are waited for, and made here if their process is
    presumed dead. A run resumes from its last checkpoint, if there is one. Runs with a common name
    (``options.sweep``) have a row in ``sweeps``.

    An error raised on purpose before a run's first event, such as missing data, fails the run
    without storing it, so that the run is made when the data are there.

    Args:
        runs: The runs, with different keys.
        engine: A database opened for writing.
        places: Where the runs are made.
        listener: Receives the events.
        standing: State of the runs in the database.
        files: Checkpoints and logs; by default beside the database.
        save_model: Writes the models that runs send; None to save none.

    Raises:
        InterruptedRunError: Ctrl-C; runs in progress are stored as interrupted, with a checkpoint
            if they reached one.
        PreemptedError: SIGTERM; likewise.
        RunError: Worker processes die before they can start a run.
        DisconnectedError: The connection to a cluster is lost; stored rows are intact.
        DynabroError: The database cannot be written; stored rows are intact.
    """
    options, files, kept = places.options, files or SideFiles.of(engine.url), KeptConnection(engine)
    logged = Logged(listener, options)
    slots = slots_of(
        kept,
        places,
        min(places.most, len(runs)),
        files,
        repeat=standing.repeat,
        save_model=save_model,
    )
    keys = [run.key for run in runs]
    ledger = Ledger(runs, options, files, logged, standing.stored(keys), places.sharing)
    owners = [slot.recorder.owner for slot in slots]
    entry = None
    if options.sweep_row is not None:  # runs without a common name are no sweep
        entry = SweepEntry(
            kept,
            name=options.sweep_row,
            runs=len(runs),
            listed=standing.end_times(keys),
            jobs=options.jobs or 1,
            executor=options.executor,
            text=functools.partial(_text, options.sweep, options.sweep_text),
            rerun_after=standing.repeat.last if isinstance(standing.repeat, UpTo) else None,
            stored_before=len(runs)
            - len(standing.to_make(keys, retry_failed=options.retry_failed)),
        )
        owners.append(entry.owner)
    with (
        contextlib.closing(kept),  # after the end of the sweep's row is written
        entry or contextlib.nullcontext(),
        heartbeats(engine, owners),
        contextlib.closing(logged),
    ):
        try:
            return Scheduler(ledger, slots, options, places.backend, kept).run()
        finally:
            if entry is not None:
                statuses = {outcome.status for outcome in ledger.outcomes}
                entry.failed, entry.complete = "failed" in statuses, "interrupted" not in statuses


def keep_list(engine: Engine, runs: Sequence[Run], options: Options, standing: Standing) -> None:
    """Store the row and the list of a sweep of which every run is stored."""
    keys = [run.key for run in runs]
    with SweepEntry(
        engine,
        name=str(options.sweep_row),
        runs=len(runs),
        listed=standing.end_times(keys),
        stored_before=len(runs),
        jobs=1,
        executor=options.executor,
        text=functools.partial(_text, options.sweep, options.sweep_text),
    ) as entry:
        entry.complete = True


def slots_of(
    kept: KeptConnection,
    places: Places,
    count: int,
    files: SideFiles,
    *,
    repeat: Repeat = never,
    save_model: SaveModel | None = None,
) -> list[Slot]:
    """Return ``count`` slots for runs, each with a recorder, which share a connection; report
    folders that cannot be written.
    """
    options = places.options
    files.probe()
    origin = Origin(current_commit(), current_changes(), options.tags, options.note)
    return [
        Slot(
            number,
            Recorder(
                kept,
                origin=origin,
                sweep=options.sweep,
                repeat=repeat,
                files=files,
                save_model=save_model,
            ),
            places.devices[number % len(places.devices)],
            places.mps,
        )
        for number in range(count)
    ]


def _text(name: str | None, text: str, connection: Connection) -> str | None:
    """Return the text of a sweep to store, unless its name is the name of a search."""
    if name is not None:
        refuse_name_of_search(connection, name)
    return text or None
