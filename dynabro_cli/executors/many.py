"""Common part of the executors of many runs: checks of options, and a sweep's recorders, queue and row in the database."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sqlalchemy import Engine

from dynabro_cli.errors import SpecError
from dynabro_cli.executors._api import Listener, Options, Outcome
from dynabro_cli.executors.backend import Backend
from dynabro_cli.executors.ledger import Ledger, Slot
from dynabro_cli.executors.local import current_commit
from dynabro_cli.executors.scheduler import Scheduler
from dynabro_cli.executors.signs_of_life import signs_of_life
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.machine.compile_choice import check_choice
from dynabro_cli.store.kept_connection import KeptConnection
from dynabro_cli.store.models import ModelFolder
from dynabro_cli.store.recorder import Recorder
from dynabro_cli.store.repetition import Standing, repetition
from dynabro_cli.store.side_files import SideFiles
from dynabro_cli.store.translation import translated_errors


def check_options(options: Options) -> None:
    """Raise SpecError with all problems of the options that are known without looking for devices."""
    limits = {"jobs": 1, "threads": 1, "max_retries": 0, "jobs_per_gpu": 1}
    values = {name: getattr(options, name) for name in limits}
    problems = [
        f"{name}={value} is not legal; it must be at least {limits[name]}"
        for name, value in values.items()
        if value is not None and value < limits[name]
    ]
    problems += [
        f"{name}={value} is not legal; it must be a number of seconds above 0"
        for name, value in (("timeout", options.timeout), ("checkpoint_every", options.checkpoint_every))
        if value is not None and not 0 < value < math.inf
    ]
    if problems:
        raise SpecError(problems)
    check_choice(options.compile)


def make_all(
    runs: Sequence[Run],
    engine: Engine,
    options: Options,
    listener: Listener,
    files: SideFiles | None,
    *,
    devices: Sequence[str],
    places: int,
    executor: str,
    backend: Callable[[], Backend],
) -> list[Outcome]:
    """Make every run on a back end, and store them; return the outcomes in the order of ``runs``.

    Args:
        runs: The runs, with different keys.
        engine: A database opened for writing.
        options: The options, with jobs and threads resolved.
        listener: Receives the events.
        files: Checkpoints and logs; by default beside the database.
        devices: The devices, which the places share in turn.
        places: Most runs at a time.
        executor: The executor's name in ``sweeps``.
        backend: Opens the back end, which the scheduler closes.
    """
    commit, files = current_commit(), files or SideFiles.of(engine.url)
    with translated_errors(engine.url), engine.connect() as connection:
        repeat = repetition(connection, options.entry, options.rerun)
        stored = Standing(connection, repeat).stored(run.key for run in runs)
    url = engine.url.render_as_string(hide_password=False)
    save_model = None if options.models is None else ModelFolder(options.models, url)
    kept = KeptConnection(engine)
    slots = [
        Slot(
            number,
            Recorder(kept, git_commit=commit, sweep=options.sweep, repeat=repeat, files=files, save_model=save_model),
            devices[number % len(devices)],
        )
        for number in range(min(places, len(runs)))
    ]
    ledger = Ledger(runs, options, files, listener, stored)
    owners = [slot.recorder.owner for slot in slots]
    with signs_of_life(engine, ledger.outcomes, owners, options, executor, repeat):
        return Scheduler(ledger, slots, options, backend(), kept).run()
