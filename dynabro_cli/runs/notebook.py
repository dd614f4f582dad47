"""``dynabro_cli.run`` and ``dynabro_cli.sweep``: the commands of these names from Python, for
notebooks and scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabro_cli.core.errors import NotFoundError, SpecError, SweepError, first_line
from dynabro_cli.core.registration import METRICS, USERS, plain
from dynabro_cli.experiment.build import data_directory
from dynabro_cli.experiment.grid.plan import PlannedRuns, plan
from dynabro_cli.experiment.grid.sweep_file import Sweep
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep, parse, set_fields
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.making import error_of, make_runs
from dynabro_cli.runs.screen import runs_shown
from dynabro_cli.runs.screen.terminal import complain
from dynabro_cli.runs.store.read.frames import Frames, read
from dynabro_cli.runs.store.read.queries import among
from dynabro_cli.runs.store.write.origin import check_words
from dynabro_cli.runs.trackers import check_logs

if TYPE_CHECKING:
    import pandas as pd

    from dynabro_cli.runs.executors._api import Outcome
    from dynabro_cli.runs.store.write.standing import Rerun

ADVICE = "rerun_changed=True repeats these runs"


def run(
    spec: RunSpec | Mapping[str, Any],
    db: str | Path = "results.db",
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    rerun: bool = False,
    rerun_changed: bool = False,
    tags: Sequence[str] = (),
    note: str | None = None,
    log: Sequence[str] = (),
    quiet: bool = False,
) -> pd.Series[Any]:
    """Make a run in this process and store it, as ``dynabro run`` does; return its row, as ``load``
    has it.

    A stored run is not made again. A warning says if its code or data differ from the current
    ones. An interrupted run resumes from its last checkpoint.

    Args:
        spec: The run, or a mapping of fields, such as ``{"task": "digits", "lr": 0.1}``.
        db: The database: a file, or an SQLAlchemy URL.
        device: ``auto``, ``cpu`` or ``cuda:N``.
        data_dir: Folder of data sets; None for the usual one.
        rerun: Repeat a stored run, and replace its result.
        rerun_changed: Repeat a stored run that was made with other code of a component, or with
            other data.
        tags: Tags of the run.
        note: A note on it.
        log: Trackers, such as ``("tensorboard:DIR", "mlflow:URI")``, that also get the evaluations.
        quiet: Show no progress.

    Raises:
        SpecError: With every problem of the spec.
        DynabroError: The run failed, or the database cannot be written.
    """
    given = spec if isinstance(spec, RunSpec) else RunSpec.from_mapping(spec)
    folder = None if data_dir is None else Path(data_dir)
    planned = PlannedRuns(Sweep(""), (resolve(given, data_directory(folder)),), 0, 0)
    options = Options(
        jobs=0,
        device=device,
        data_dir=folder,
        rerun=_rerun(rerun, rerun_changed),
        retry_failed=True,
        log=check_logs(log),
    )
    (outcome,) = _made(planned, db, options, tags, note, quiet=quiet)
    if outcome.failure is not None:
        raise error_of(outcome.failure)
    where = f"run_key = '{outcome.run.key}'"
    return read(db, where, folder=folder, advice=ADVICE).runs.iloc[0]


def sweep(
    sweep: str | Path | Mapping[str, Any],
    db: str | Path = "results.db",
    *,
    settings: Sequence[str] = (),
    jobs: int | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    rerun: bool = False,
    rerun_changed: bool = False,
    tags: Sequence[str] = (),
    note: str | None = None,
    log: Sequence[str] = (),
    quiet: bool = False,
) -> Frames:
    """Make the missing runs of a sweep, as ``dynabro sweep`` does; return all of its runs, as
    ``load`` has them. A warning says if they were made with code or data that differ from the
    current ones.

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
        rerun_changed: Repeat stored runs that were made with other code of a component, or with
            other data.
        tags: As in ``run``.
        note: As in ``run``.
        log: As in ``run``.
        quiet: As in ``run``.

    Raises:
        SpecError: With every problem of the sweep.
        SweepError: Some runs failed; the others have their results.
    """
    parsed = (
        set_fields(_parsed(sweep), settings)
        if isinstance(sweep, Mapping)
        else load_sweep(str(sweep), settings)
    )
    folder = None if data_dir is None else Path(data_dir)
    planned = plan(parsed, folder)
    here = any(
        function.__module__ == "__main__"
        for function in (*(entry.factory for entry in USERS.values()), *METRICS.values())
    )
    options = Options(
        jobs=0 if here and jobs is None else plain(jobs),
        device=device,
        data_dir=folder,
        rerun=_rerun(rerun, rerun_changed),
        sweep=parsed.name,
        sweep_text=parsed.text,
        log=check_logs(log),
    )
    outcomes = _made(planned, db, options, tags, note, quiet=quiet)
    # also of a sweep of which runs failed, for its warning
    try:
        frames = read(db, sweep=parsed.name, folder=folder, advice=ADVICE)
    except NotFoundError:  # all of its runs had been stored by others before
        keys = [run.key for run in planned.runs]
        frames = read(db, among("run_key", keys), folder=folder, advice=ADVICE)
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if failed:
        raise SweepError(
            f"{len(failed)} of {len(outcomes)} runs failed, first: "
            f"{first_line(failed[0].message or '')}"
        )
    return frames


def _rerun(everything: bool, changed: bool) -> Rerun:
    return "all" if everything else "changed" if changed else "none"


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
    return make_runs(planned, str(db), options, complain, runs_shown(quiet=quiet))


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
    return parse(text, str(sweep.get("name", "sweep")), Path())


def _plain(value: Any) -> Any:
    """Return a value as YAML has it; arrays become lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value
