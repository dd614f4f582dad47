"""Run many specs in warm worker processes of this machine; only this process writes to the database."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Engine

from dynabro_cli.devices import devices_of
from dynabro_cli.errors import SpecError
from dynabro_cli.executors._api import Listener, Options, Outcome
from dynabro_cli.executors.cores import cores
from dynabro_cli.executors.ledger import Ledger, Slot
from dynabro_cli.executors.local import current_commit
from dynabro_cli.executors.scheduler import Scheduler
from dynabro_cli.executors.signs_of_life import signs_of_life
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.grid.forecast import usual_jobs
from dynabro_cli.simulation import precision
from dynabro_cli.simulation.compilation import check_choice
from dynabro_cli.store.recorder import Recorder
from dynabro_cli.store.repetition import Standing, repetition
from dynabro_cli.store.side_files import SideFiles
from dynabro_cli.store.translation import translated_errors

__all__ = ["Listener", "Options", "Outcome", "execute_all"]

WORKER = "dynabro_cli.executors.worker:serve"
EXECUTOR = "local"
"""The name of this executor in ``sweeps``."""


def execute_all(
    runs: Sequence[Run],
    engine: Engine,
    options: Options,
    listener: Listener,
    *,
    files: SideFiles | None = None,
    worker: str = WORKER,
) -> list[Outcome]:
    """Make every run, several at a time, and store them; return the outcomes in the order of ``runs``.

    Each process makes one run after another. A run that raises an exception, whose process dies, or that takes too long, is
    stored as failed, and the others continue. A run with a result in the database is not made again. The database is checked
    right before a run starts, and again when it is claimed, so that several sweeps can share a database.

    An error raised on purpose before a run's first event, such as missing data, fails the run without storing it, so that the
    run is made when the data are there.

    Args:
        runs: The runs, with different keys.
        engine: A database opened for writing.
        options: The options.
        listener: Receives the events.
        files: Checkpoints and logs; by default beside the database.
        worker: The function of a worker process, as ``module:name``.

    Runs in progress elsewhere are waited for, and made here if their process is presumed dead. A run resumes from its last
    checkpoint, if there is one.

    Raises:
        SpecError: An option is not legal, or not legal for one of the runs; nothing has started.
        InterruptedRunError: Ctrl-C; runs in progress are stored as interrupted, with a checkpoint if they reached one.
        PreemptedError: SIGTERM; likewise.
        RunError: Worker processes die before they can start a run.
        DynabroError: The database cannot be written; stored rows are intact.
    """
    devices = _check(runs, options)
    jobs = options.jobs or usual_jobs(options.device, cores(), options.jobs_per_gpu)
    options = replace(options, jobs=jobs, threads=options.threads or max(1, cores() // jobs))
    commit, files = current_commit(), files or SideFiles.of(engine.url)
    with translated_errors(engine.url), engine.connect() as connection:
        repeat = repetition(connection, options.entry, options.rerun)
        stored = Standing(connection, repeat).stored(run.key for run in runs)
    slots = [
        Slot(
            number,
            Recorder(engine, git_commit=commit, sweep=options.sweep, repeat=repeat, files=files),
            devices[number % len(devices)],
        )
        for number in range(min(jobs, len(runs)))
    ]
    ledger = Ledger(runs, options, files, listener, stored)
    owners = [slot.recorder.owner for slot in slots]
    with signs_of_life(engine, ledger.outcomes, owners, options, EXECUTOR, repeat):
        return Scheduler(ledger, slots, options, worker).run()


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


def _check(runs: Sequence[Run], options: Options) -> list[str]:
    """Return the devices to run on; raise SpecError if an option is not legal, or not legal for one of the runs."""
    check_options(options)
    devices = devices_of(options.device)
    for kind in sorted({run.spec.precision for run in runs}):
        precision.check(kind, devices[0])
    return devices
