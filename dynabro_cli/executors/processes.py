"""Run many specs in warm worker processes of this machine; only this process writes to the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Engine

from dynabro_cli.executors._api import Listener, Options, Outcome
from dynabro_cli.executors.crew import Crew
from dynabro_cli.executors.many import check_options, make_all
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.grid.forecast import usual_jobs
from dynabro_cli.machine.cores import cores
from dynabro_cli.machine.devices import devices_of
from dynabro_cli.simulation import precision
from dynabro_cli.store.side_files import SideFiles

__all__ = ["Listener", "Options", "Outcome", "execute_all"]

EXECUTOR = "local"
"""The name of this executor in ``sweeps``."""


def execute_all(
    runs: Sequence[Run],
    engine: Engine,
    options: Options,
    listener: Listener,
    *,
    files: SideFiles | None = None,
    crew: Crew | None = None,
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
        crew: The worker processes, of which some may have started; they are closed at the end. By default, a new one.

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
    crew = crew or Crew()
    crew.resize(jobs)
    return make_all(
        runs,
        engine,
        options,
        listener,
        files,
        devices=devices,
        places=jobs,
        executor=EXECUTOR,
        backend=lambda: crew,
    )


def _check(runs: Sequence[Run], options: Options) -> list[str]:
    """Return the devices to run on; raise SpecError if an option is not legal, or not legal for one of the runs."""
    check_options(options)
    devices = devices_of(options.device)
    for kind in sorted({run.spec.precision for run in runs}):
        precision.check(kind, devices[0])
    return devices
