"""``dynabro sweep``: run a grid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynabro_cli.cli.options import (
    CheckpointEvery,
    CompileKernels,
    Database,
    DataDir,
    Device,
    DryRun,
    MaxRetries,
    Note,
    Plugins,
    Quiet,
    Tags,
    Timeout,
    TryAnyway,
)
from dynabro_cli.cli.output import warn
from dynabro_cli.cli.sweep_runs import foretell, jobs_of, run_all
from dynabro_cli.errors import SpecError

if TYPE_CHECKING:
    from dynabro_cli.grid.plan import PlannedRuns
    from dynabro_cli.store.repetition import Rerun


SweepName = Annotated[
    str, typer.Argument(metavar="FILE|NAME|-", help="A YAML file, a sweep of 'dynabro list sweeps', or standard input.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a field of every run, or seeds=0..4, in place of the sweep's own; repeat for several fields, or for "
        "several values of one.",
    ),
]
ShardText = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER/COUNT",
        help="Make only one of COUNT disjoint parts, counted from 1. A run stays in its part when the sweep grows.",
    ),
]
SweepJobs = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        help="Runs at a time, one process each; auto: as many as cores, or --jobs-per-gpu on every GPU; "
        "0: in this process, for a debugger.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="CPU threads of each run. [default: the cores, shared out; 1 for a small model]"),
]
JobsPerGpu = Annotated[
    int, typer.Option("--jobs-per-gpu", min=1, metavar="N", help="Runs that share a GPU, if --jobs is auto.")
]
SaveModels = Annotated[
    Path | None,
    typer.Option("--save-models", metavar="DIR", help="Save the model at the end of each run to DIR/RUN_KEY.safetensors."),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Repeat runs that are stored as failed.")]
RerunAll = Annotated[
    bool,
    typer.Option(
        "--rerun",
        help="Repeat stored runs; a new result replaces the old one when it is complete. The same command continues an "
        "interrupted rerun. After a complete one it starts another.",
    ),
]
RerunChanged = Annotated[
    bool,
    typer.Option(
        "--rerun-changed",
        help="Repeat runs that were made with other code of a component. A change of the engine does not count: it "
        "often changes the speed only.",
    ),
]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop everything at the first failure.")]
Executor = Annotated[str, typer.Option(metavar="local|ray", help="Make runs on this machine, or in a Ray cluster.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="auto|ray://HOST:PORT|HOST:PORT", help="The Ray cluster, with --executor ray. [default: auto]"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcomes, or the forecast, as JSON.")]


def sweep(
    name: SweepName,
    settings: Settings = None,
    shard: ShardText = None,
    dry_run: DryRun = False,
    db: Database = "results.db",
    jobs: SweepJobs = "auto",
    device: Device = "auto",
    data_dir: DataDir = None,
    threads: Threads = None,
    compile: CompileKernels = "auto",  # noqa: A002
    jobs_per_gpu: JobsPerGpu = 1,
    checkpoint_every: CheckpointEvery = 60,
    save_models: SaveModels = None,
    tags: Tags = None,
    note: Note = None,
    timeout: Timeout = None,
    max_retries: MaxRetries = 0,
    retry_failed: RetryFailed = False,
    rerun: RerunAll = False,
    rerun_changed: RerunChanged = False,
    fail_fast: FailFast = False,
    executor: Executor = "local",
    address: Address = None,
    force: TryAnyway = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    plugin: Plugins = None,
) -> None:
    """Run every point of a grid, several at a time, and store the results. Stored runs are skipped.

    The same command resumes an interrupted sweep. A run that fails is stored as failed, and the others continue.

    Example: dynabro sweep mnist-sf-cwtm --set seeds=0..1 --set budget=500 --dry-run
    """
    from dynabro_cli.executors import backends
    from dynabro_cli.executors._api import Options
    from dynabro_cli.grid.plan import plan
    from dynabro_cli.grid.shard import Shard, only
    from dynabro_cli.grid.sweep_lookup import load_sweep
    from dynabro_cli.store.origin import check_words

    part = None if shard is None else Shard.parse(shard)
    planned = plan(load_sweep(name, settings or ()))
    whole = len(planned.runs)
    _warn(planned)
    planned = planned if part is None else only(planned, part)
    options = Options(
        executor=executor,
        address=address,
        jobs=jobs_of(jobs),
        threads=threads,
        device=device,
        data_dir=data_dir,
        compile=compile,
        timeout=timeout,
        max_retries=max_retries,
        tags=check_words(tags or (), note),
        note=note,
        retry_failed=retry_failed,
        rerun=_rerun(rerun, rerun_changed),
        fail_fast=fail_fast,
        sweep=planned.sweep.name,
        sweep_text=planned.sweep.text,
        shard=None if part is None else part.text,
        jobs_per_gpu=jobs_per_gpu,
        checkpoint_every=checkpoint_every,
        force=force,
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


def _warn(planned: PlannedRuns) -> None:
    """Report what in the sweep has no effect, one line each."""
    for line in planned.idle_exclusions:
        warn(line)
