"""Make runs that are not stored, for the commands that make runs and for Python.

The modules that take long to import are imported here when the processes of the back end have been
started, which takes longer.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dynabro_cli.core.errors import (
    BusyError,
    CannotWriteError,
    DatabaseError,
    DynabroError,
    SpecError,
    StorageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from sqlalchemy import Engine

    from dynabro_cli.experiment.grid.plan import PlannedRuns
    from dynabro_cli.experiment.resolve import Run
    from dynabro_cli.runs.executors._api import Failure, Listener, Options, Outcome
    from dynabro_cli.runs.executors.backend import Places
    from dynabro_cli.runs.store.write.recorder import SaveModel
    from dynabro_cli.runs.store.write.side_files import SideFiles
    from dynabro_cli.runs.store.write.standing import Standing

    Tell = Callable[[str], None]
    Show = Callable[[Sequence[Run]], AbstractContextManager[Listener]]

WHERE = "SELECT error FROM runs WHERE status='failed'"
"""The query that an error names."""


@contextlib.contextmanager
def opened(
    runs: Sequence[Run], db: str, options: Options, tell: Tell, *, most: int | None = None
) -> Iterator[tuple[Engine, Places, SideFiles]]:
    """Open the back end for runs, their database for writing, and the folder of their checkpoints
    and logs; tell about devices and the number of runs at a time.

    Args:
        runs: The runs to make, or some like them.
        db: The database.
        options: The options.
        tell: Prints a line for the user.
        most: Most runs that may be made; None for the number of ``runs``.
    """
    from dynabro_cli.runs.executors import backends

    with backends.opened(options, len(runs) if most is None else most) as places_for:
        from dynabro_cli.runs.store.open.engine import open_for_writing
        from dynabro_cli.runs.store.write.side_files import SideFiles

        places = places_for(runs)
        for line in places.notes:
            tell(line)
        engine = open_for_writing(db)
        yield engine, places, SideFiles.of(engine.url, lambda text: tell(f"warning: {text}"))


def make_runs(
    planned: PlannedRuns,
    db: str,
    options: Options,
    tell: Tell,
    show: Show,
    save_model: SaveModel | None = None,
    *,
    standing: Standing | None = None,
) -> list[Outcome]:
    """Make the runs of a plan that are not stored; return their outcomes.

    A run that is stored under another text of the same adversary replaces the run of the plan. If
    all runs are stored, torch is not loaded, and nothing is written but a list of the sweep's runs
    that is not stored yet.

    Args:
        planned: The plan.
        db: The database.
        options: The options.
        tell: Prints a line for the user.
        show: Returns the listener of the runs.
        save_model: Writes the models that runs send; None to save none.
        standing: State of the runs in the database; None to read it here.
    """
    from dynabro_cli.experiment.grid.plan import as_stored
    from dynabro_cli.runs.executors._api import Outcome
    from dynabro_cli.runs.store.write.standing import read_standing

    if standing is None:
        standing = read_standing(db, options.sweep_row, options.rerun, options.data_dir)
    runs = as_stored(planned, standing.has).runs
    if not runs or (
        options.rerun == "none" and all(standing.end_of(run.key) == "stored" for run in runs)
    ):
        _keep_list(runs, db, options, standing)
        return [Outcome(run, "stored", None) for run in runs]
    to_make = standing.to_make([run.key for run in runs], retry_failed=options.retry_failed)
    with opened([run for run in runs if run.key in to_make], db, options, tell) as (
        engine,
        places,
        files,
    ):
        from dynabro_cli.runs.executors.sweep import make_all

        with show(runs) as listener:
            return make_all(
                runs, engine, places, listener, standing, files=files, save_model=save_model
            )


def _keep_list(runs: Sequence[Run], db: str, options: Options, standing: Standing) -> None:
    """Store the list of a sweep's runs, unless they are known to be its runs."""
    from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only
    from dynabro_cli.runs.store.write.sweep_entry import is_listed

    if not runs or options.sweep_row is None:
        return
    with open_read_only(db).connect() as connection:
        if is_listed(connection, options.sweep_row, [run.key for run in runs]):
            return
    from dynabro_cli.runs.executors.sweep import keep_list

    # a database that cannot be written, or not now, is as good without the list
    with contextlib.suppress(BusyError, CannotWriteError, DatabaseError, StorageError):
        keep_list(open_for_writing(db), runs, options, standing)


def error_of(failure: Failure) -> DynabroError:
    """Return the error of a run that failed, with the exit code of its reason."""
    text = failure.reason
    if not failure.expected:
        text = (
            f"the run failed ({text}) and is stored as failed. Try: dynabro query "
            f'"{WHERE}", which shows where'
        )
    error = (
        SpecError(text.splitlines())
        if failure.exit_code == SpecError.exit_code
        else DynabroError(text)
    )
    error.exit_code = failure.exit_code
    return error
