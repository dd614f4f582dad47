"""``dynabro sweep``: run a grid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynabro_cli.cli.completion import complete, files
from dynabro_cli.cli.make.sweep_runs import foretell, run_all
from dynabro_cli.cli.options import (
    Database,
    DryRun,
    Metrics,
    Plugins,
    Quiet,
    RerunChanged,
    RetryFailed,
    Settings,
    making,
)
from dynabro_cli.core.errors import SpecError
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.screen.output import warn
from dynabro_cli.runs.screen.terminal import note

if TYPE_CHECKING:
    from dynabro_cli.runs.store.write.standing import Rerun


SweepName = Annotated[
    str,
    typer.Argument(
        metavar="FILE|NAME|-",
        help="A YAML file, a sweep of 'dynabro list sweeps', or standard input.",
        autocompletion=complete(files("sweeps")),
    ),
]
ShardText = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER/COUNT",
        help="Make only one of COUNT disjoint parts, counted from 1. A run stays in its part "
        "when the sweep grows.",
    ),
]
SaveModels = Annotated[
    Path | None,
    typer.Option(
        "--save-models",
        metavar="DIR",
        help="Save the model at the end of each run to DIR/RUN_KEY.safetensors.",
    ),
]
RerunAll = Annotated[
    bool,
    typer.Option(
        "--rerun",
        help="Repeat stored runs; a new result replaces the old one when it is complete. The "
        "same command continues an "
        "interrupted rerun. After a complete one it starts another.",
    ),
]
FailFast = Annotated[
    bool, typer.Option("--fail-fast", help="Stop everything at the first failure.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the outcomes, or the forecast, as JSON.")
]


@making({})
def sweep(
    name: SweepName,
    *,
    settings: Settings = None,
    shard: ShardText = None,
    dry_run: DryRun = False,
    db: Database = "results.db",
    how: Options,
    save_models: SaveModels = None,
    retry_failed: RetryFailed = False,
    rerun: RerunAll = False,
    rerun_changed: RerunChanged = False,
    fail_fast: FailFast = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    metrics: Metrics = None,
    plugin: Plugins = None,
) -> None:
    """Run every point of a grid, several at a time, and store the results. Stored runs are skipped.

    The same command resumes an interrupted sweep. A run that fails is stored as failed, and the
    others continue.

    Example: dynabro sweep mnist-sf-cwtm --set seeds=0..1 --set budget=500 --dry-run
    """
    from dynabro_cli.experiment.grid.plan import Shard, only, plan
    from dynabro_cli.experiment.grid.sweep_lookup import load_sweep
    from dynabro_cli.runs.executors import backends

    part = None if shard is None else Shard.parse(shard)
    planned = plan(load_sweep(name, settings or (), run_plugins=not dry_run), how.data_dir)
    whole = len(planned.runs)
    for line in planned.idle_exclusions:
        warn(line)
    match planned.sweep.seeds:
        case (seed,) if seed > 1:
            note(f"seeds: {seed} is one seed. For {seed} of them: --set seeds=0..{seed - 1}")
    planned = planned if part is None else only(planned, part)
    options = replace(
        how,
        retry_failed=retry_failed,
        rerun=_rerun(rerun, rerun_changed),
        fail_fast=fail_fast,
        sweep=planned.sweep.name,
        sweep_text=planned.sweep.text,
        shard=None if part is None else part.text,
        weights="never" if save_models is None else "end",
    )
    backends.check(options)
    if dry_run:
        foretell(planned, db, options, as_json, whole=whole)
    else:
        run_all(planned, db, options, save_models, as_json=as_json, quiet=quiet)


def _rerun(everything: bool, changed: bool) -> Rerun:
    if everything and changed:
        raise SpecError("--rerun and --rerun-changed exclude each other. Try: one of them")
    return "all" if everything else "changed" if changed else "none"
