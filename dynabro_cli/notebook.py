"""``dynabro_cli.run`` and ``dynabro_cli.sweep``: the commands of these names from Python, for
notebooks and scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabro_cli.cli.making import error_of, make_runs
from dynabro_cli.components import USERS, plain
from dynabro_cli.errors import NotFoundError, SpecError, SweepError, first_line
from dynabro_cli.executors._api import Options
from dynabro_cli.experiment.build import data_directory
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.grid.plan import PlannedRuns, plan
from dynabro_cli.grid.sweep_file import Sweep, parse_sweep
from dynabro_cli.grid.sweep_lookup import load_sweep, set_fields
from dynabro_cli.models._api import METRICS
from dynabro_cli.store.origin import check_words
from dynabro_cli.store.read.frames import Frames, load
from dynabro_cli.store.read.queries import among

if TYPE_CHECKING:
    import pandas as pd

    from dynabro_cli.executors._api import Outcome


def run(
    spec: RunSpec | Mapping[str, Any],
    db: str | Path = "results.db",
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    rerun: bool = False,
    tags: Sequence[str] = (),
    note: str | None = None,
    quiet: bool = False,
) -> pd.Series[Any]:
    """Make a run in this process and store it, as ``dynabro run`` does; return its row, as ``load``
    has it.

    A stored run is not made again. An interrupted one resumes from its last checkpoint.

    Args:
        spec: The run, or a mapping of fields, such as ``{"task": "digits", "lr": 0.1}``.
        db: The database: a file, or an SQLAlchemy URL.
        device: ``auto``, ``cpu`` or ``cuda:N``.
        data_dir: Folder of data sets; None for the usual one.
        rerun: Repeat a stored run, and replace its result.
        tags: Tags of the run.
        note: A note on it.
        quiet: Show no progress.

    Raises:
        SpecError: With every problem of the spec.
        DynabroError: The run failed, or the database cannot be written.
    """
    given = spec if isinstance(spec, RunSpec) else RunSpec.from_mapping(spec)
    folder = None if data_dir is None else Path(data_dir)
    planned = PlannedRuns(Sweep(""), (resolve(given, data_directory(folder)),), 0, 0)
    options = Options(
        jobs=0, device=device, data_dir=folder, rerun="all" if rerun else "none", retry_failed=True
    )
    (outcome,) = _made(planned, db, options, tags, note, quiet=quiet)
    if outcome.failure is not None:
        raise error_of(outcome.failure)
    return load(db, f"run_key = '{outcome.run.key}'").runs.iloc[0]


def sweep(
    sweep: str | Path | Mapping[str, Any],
    db: str | Path = "results.db",
    *,
    settings: Sequence[str] = (),
    jobs: int | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    rerun: bool = False,
    tags: Sequence[str] = (),
    note: str | None = None,
    quiet: bool = False,
) -> Frames:
    """Make the missing runs of a sweep, as ``dynabro sweep`` does; return all of its runs, as
    ``load`` has them.

    Args:
        sweep: A YAML file, a sweep of ``dynabro list sweeps``, or the same as a mapping: ``{"name":
            "mine", "base": {"task": "digits"}, "grid": {"attack": ["alie", "ipm"]}, "seeds":
            range(3)}``.
        db: As in ``run``.
        settings: ``FIELD=VALUE``, as ``--set`` takes them.
        jobs: Runs at a time, one process each; None for one per core, 0 for this process.
            Components of a notebook's cell, or of a script, are known in this process only, so that
            None is 0 with them.
        device: As in ``run``.
        data_dir: As in ``run``.
        rerun: Repeat stored runs, and replace their results.
        tags: As in ``run``.
        note: As in ``run``.
        quiet: As in ``run``.

    Raises:
        SpecError: With every problem of the sweep.
        SweepError: Some runs failed; the others have their results.
    """
    read = (
        set_fields(_parsed(sweep), settings)
        if isinstance(sweep, Mapping)
        else load_sweep(str(sweep), settings)
    )
    planned = plan(read, None if data_dir is None else Path(data_dir))
    here = any(
        function.__module__ == "__main__"
        for function in (*(entry.factory for entry in USERS.values()), *METRICS.values())
    )
    options = Options(
        jobs=0 if here and jobs is None else plain(jobs),
        device=device,
        data_dir=None if data_dir is None else Path(data_dir),
        rerun="all" if rerun else "none",
        sweep=read.name,
        sweep_text=read.text,
    )
    outcomes = _made(planned, db, options, tags, note, quiet=quiet)
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if failed:
        raise SweepError(
            f"{len(failed)} of {len(outcomes)} runs failed, first: "
            f"{first_line(failed[0].message or '')}"
        )
    try:
        return load(db, sweep=read.name)
    except NotFoundError:  # all of its runs had been stored by others before
        return load(db, among("run_key", [run.key for run in planned.runs]))


def _made(
    planned: PlannedRuns,
    db: str | Path,
    options: Options,
    tags: Sequence[str],
    note: str | None,
    *,
    quiet: bool,
) -> list[Outcome]:
    options = replace(options, tags=check_words(tags, note), note=note)
    return make_runs(planned, str(db), options, quiet=quiet)


def _parsed(sweep: Mapping[str, Any]) -> Sweep:
    """Read a sweep that is a mapping."""
    import yaml

    try:
        text = yaml.safe_dump(_plain(sweep), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise SpecError(
            f"the sweep has a value that YAML does not have ({first_line(error)}). Try: texts "
            "and numbers"
        ) from error
    return parse_sweep(text, str(sweep.get("name", "sweep")))


def _plain(value: Any) -> Any:
    """Return a value as YAML has it; arrays become lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value
