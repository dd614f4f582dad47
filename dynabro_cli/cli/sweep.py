"""``dynabro sweep``: run a grid."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynabro_cli.cli.output import (
    CheckpointEvery,
    Database,
    TryAnyway,
    duration,
    emit,
    print_json,
    size,
    tell_of_code,
    warn,
)
from dynabro_cli.cli.terminal import complain, hint, say
from dynabro_cli.components import parse_whole
from dynabro_cli.errors import SpecError, SweepError

if TYPE_CHECKING:
    from dynabro_cli.components.digests import Comparison
    from dynabro_cli.executors._api import Options, Outcome, Status
    from dynabro_cli.grid.plan import PlannedRuns
    from dynabro_cli.store.repetition import Rerun

WORDS: dict[Status, str] = {
    "finished": "finished",
    "diverged": "diverged",
    "stored": "stored before",
    "failed": "failed",
    "interrupted": "not run",
}


def sweep(
    name: Annotated[
        str, typer.Argument(metavar="FILE|NAME|-", help="A YAML file, a sweep of 'dynabro list sweeps', or standard input.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Set a field of every run, or seeds=0..4, in place of the sweep's own; repeat for several fields, or for "
            "several values of one.",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER/COUNT",
            help="Make only one of COUNT disjoint parts, counted from 1. A run stays in its part when the sweep grows.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is to do, and do nothing.")] = False,
    db: Database = "results.db",
    jobs: Annotated[
        str,
        typer.Option(
            metavar="N|auto", help="Runs at a time, one process each; auto: as many as cores, or --jobs-per-gpu on every GPU."
        ),
    ] = "auto",
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda[:N]", help="Where to compute.")] = "auto",
    data_dir: Annotated[
        Path | None,
        typer.Option(envvar="DYNABRO_DATA", metavar="DIR", help="Folder of data sets. [default: in the platform's cache]"),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="CPU threads of each run. [default: the cores, shared out]")
    ] = None,
    compile: Annotated[  # noqa: A002
        str, typer.Option(metavar="auto|on|off", help="Compile kernels: auto decides by the planned work.")
    ] = "auto",
    jobs_per_gpu: Annotated[
        int, typer.Option("--jobs-per-gpu", min=1, metavar="N", help="Runs that share a GPU, if --jobs is auto.")
    ] = 1,
    checkpoint_every: CheckpointEvery = 60,
    save_models: Annotated[
        Path | None,
        typer.Option("--save-models", metavar="DIR", help="Save the model at the end of each run to DIR/RUN_KEY.safetensors."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Time limit of a run. [default: no limit]")
    ] = None,
    max_retries: Annotated[
        int, typer.Option("--max-retries", min=0, metavar="N", help="Number of retries of a run whose process died.")
    ] = 0,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Repeat runs that are stored as failed.")] = False,
    rerun: Annotated[
        bool,
        typer.Option(
            "--rerun",
            help="Repeat stored runs; a new result replaces the old one when it is complete. The same command continues an "
            "interrupted rerun. After a complete one it starts another.",
        ),
    ] = False,
    rerun_changed: Annotated[
        bool,
        typer.Option(
            "--rerun-changed",
            help="Repeat runs that were made with other code of a component. A change of the engine does not count: it "
            "often changes the speed only.",
        ),
    ] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop everything at the first failure.")] = False,
    executor: Annotated[
        str, typer.Option(metavar="local|ray", help="Make runs on this machine, or in a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(metavar="auto|ray://HOST:PORT|HOST:PORT", help="The Ray cluster, with --executor ray. [default: auto]"),
    ] = None,
    force: TryAnyway = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcomes, or the forecast, as JSON.")] = False,
) -> None:
    """Run every point of a grid, several at a time, and store the results. Stored runs are skipped.

    The same command resumes an interrupted sweep. A run that fails is stored as failed, and the others continue.

    Example: dynabro sweep mnist-sf-cwtm --set seeds=0..1 --set budget=500 --dry-run
    """
    from dynabro_cli.executors._api import Options
    from dynabro_cli.grid.plan import plan
    from dynabro_cli.grid.shard import Shard, only
    from dynabro_cli.grid.sweep_lookup import load_sweep
    from dynabro_cli.simulation.compilation import check_choice

    part = None if shard is None else Shard.parse(shard)
    planned = plan(load_sweep(name, settings or ()))
    whole = len(planned.runs)
    _warn(planned)
    check_choice(compile)
    _check_executor(executor, address)
    planned = planned if part is None else only(planned, part)
    options = Options(
        jobs=jobs_of(jobs),
        threads=threads,
        device=device,
        data_dir=data_dir,
        compile=compile,
        timeout=timeout,
        max_retries=max_retries,
        retry_failed=retry_failed,
        rerun=_rerun(rerun, rerun_changed),
        fail_fast=fail_fast,
        sweep=planned.sweep.name,
        shard=None if part is None else part.text,
        jobs_per_gpu=jobs_per_gpu,
        checkpoint_every=checkpoint_every,
        force=force,
        models=save_models,
    )
    if dry_run:
        foretell(planned, db, options, as_json, whole=whole)
    else:
        _tell_of_code(*_code(planned, db, options), options.rerun)
        _run(planned, db, options, on_ray=executor == "ray", address=address, as_json=as_json, quiet=quiet)


def _rerun(everything: bool, changed: bool) -> Rerun:
    if everything and changed:
        raise SpecError("--rerun and --rerun-changed exclude each other. Try: one of them")
    return "all" if everything else "changed" if changed else "none"


def _code(planned: PlannedRuns, db: str, options: Options) -> tuple[Comparison, bool]:
    """Compare the code of a plan's stored runs with the current code; also return True if an interrupted rerun is continued."""
    from dynabro_cli.store.repetition import UpTo, stand

    repeat, standing = stand(db, options.entry, options.rerun)
    return standing.compare(run.key for run in planned.runs), isinstance(repeat, UpTo) and repeat.goes_on


def _tell_of_code(code: Comparison, goes_on: bool, rerun: Rerun) -> None:
    """Report stored runs of other code, and what a rerun does about them, one line each."""
    advice = {"none": "--rerun-changed repeats these runs", "changed": "these runs are repeated", "all": ""}[rerun]
    tell_of_code(code, advice)
    if rerun == "changed" and code.unknown:
        complain(f"stored runs of which the code is not known: {code.unknown} of {code.runs}; --rerun repeats these, too")
    if goes_on:
        complain("an interrupted rerun is continued: its finished runs are not repeated")


def _check_executor(executor: str, address: str | None) -> None:
    if executor not in ("local", "ray"):
        raise SpecError(f"executor={executor} is not legal. Try: --executor local or ray")
    if address is not None and executor != "ray":
        raise SpecError(f"address={address} is not valid here: it requires --executor ray")


def _warn(planned: PlannedRuns) -> None:
    """Report what in the sweep has no effect, one line each."""
    for line in planned.idle_exclusions:
        warn(line)


def jobs_of(text: str) -> int | None:
    """Return the number of runs at a time of an option; None for as many as fit."""
    try:
        count = None if text == "auto" else parse_whole(text)
    except ValueError:
        count = 0
    if count is not None and count < 1:
        raise SpecError(f"jobs={text} is not legal. Try: --jobs with a whole number >= 1 or auto")
    return count


def foretell(planned: PlannedRuns, db: str, options: Options, as_json: bool, *, whole: int | None = None) -> None:
    """Print what is to do, its duration, and its space; ``whole`` is the number of runs of all shards."""
    from dynabro_cli.grid.forecast import forecast, usual_jobs
    from dynabro_cli.machine.cores import cores
    from dynabro_cli.store.translation import shown

    jobs = options.jobs or usual_jobs(options.device, cores(), options.jobs_per_gpu)
    ahead = forecast(
        planned.runs,
        db,
        device=options.device,
        retry_failed=options.retry_failed,
        jobs=jobs,
        sweep=options.entry,
        rerun=options.rerun,
    )
    _tell_of_code(ahead.code, ahead.goes_on, options.rerun)
    if as_json:
        print_json(
            {"sweep": planned.sweep.name, "duplicates": planned.duplicates, "excluded": planned.excluded}
            | ({} if options.shard is None else {"shard": options.shard, "whole": whole})
            | asdict(ahead)
        )
        return
    say(f"{planned.sweep.name}: {planned.sweep.description}".rstrip(": "))
    left = [f"{count} {what}" for count, what in ((planned.duplicates, "duplicates"), (planned.excluded, "excluded")) if count]
    part = "" if options.shard is None else f", {ahead.planned} of them in shard {options.shard}"
    say(f"{ahead.planned if whole is None else whole} runs planned{' (' + ', '.join(left) + ')' if left else ''}{part}")
    failed = f", {ahead.failed} failed before (--retry-failed repeats them)" if ahead.failed else ""
    say(f"{ahead.stored} stored in {shown(db)}{failed}, {ahead.to_do} to do")
    if ahead.to_do and ahead.seconds is None:
        say(f"time: no estimate, as no similar run is in {shown(db)}")
    elif ahead.elapsed is not None:
        part = "" if ahead.timed == ahead.to_do else f" for the {ahead.timed} of them that are similar to stored runs"
        how = ", one after another" if ahead.jobs == 1 else f" with {ahead.jobs} at a time"
        say(f"time: about {duration(ahead.elapsed)}{part}{how}, at the speed of stored runs")
    if ahead.to_do:
        say(f"database: about {size(ahead.bytes)} more")


def _run(
    planned: PlannedRuns, db: str, options: Options, *, on_ray: bool, address: str | None, as_json: bool, quiet: bool
) -> None:
    from dynabro_cli.store.models import ModelFolder

    began = time.monotonic()
    models = None if options.models is None else ModelFolder(options.models, db)
    if models is not None:
        models.check()
    outcomes = make_runs(planned, db, options, on_ray=on_ray, address=address, quiet=quiet)
    ended = [outcome.run.key for outcome in outcomes if outcome.status in ("stored", "finished", "diverged")]
    without = 0 if models is None else sum(not models.of(key).is_complete() for key in ended)
    if without:
        warn(f"{without} of {len(ended)} runs were stored before, without a model in {options.models}; --rerun repeats runs")
    _report(planned, outcomes, time.monotonic() - began, db, options, as_json)


def make_runs(
    planned: PlannedRuns, db: str, options: Options, *, quiet: bool, on_ray: bool = False, address: str | None = None
) -> list[Outcome]:
    """Make the runs of a plan that are not stored, with progress on stderr; return their outcomes.

    If all of them are stored, nothing is written, and torch is not loaded.
    """
    if not planned.runs or (options.rerun == "none" and _all_stored(planned, db)):
        from dynabro_cli.executors._api import Outcome

        return [Outcome(run, "stored", None) for run in planned.runs]
    from dynabro_cli.cli.sweep_progress import SweepProgress
    from dynabro_cli.executors.processes import execute_all
    from dynabro_cli.executors.ray_cluster import execute_all_on_ray
    from dynabro_cli.executors.room import with_room
    from dynabro_cli.grid.forecast import run_seconds
    from dynabro_cli.store.engine import open_for_writing
    from dynabro_cli.store.side_files import SideFiles

    if not on_ray and not options.force:
        asked, options = options, with_room(planned.runs, options, db)
        if options.jobs != asked.jobs:
            complain(f"{options.jobs} runs at a time, as many as fit into the free memory")
    engine = open_for_writing(db)
    files = SideFiles.of(engine.url, warn)
    files.probe()
    seconds = {} if on_ray else run_seconds(planned.runs, db, device=options.device)
    with SweepProgress(planned.runs, quiet=quiet, seconds=seconds) as progress:
        if on_ray:
            return execute_all_on_ray(planned.runs, engine, options, progress, files=files, address=address)
        return execute_all(planned.runs, engine, options, progress, files=files)


def _all_stored(planned: PlannedRuns, db: str) -> bool:
    from dynabro_cli.store.repetition import stand

    standing = stand(db, planned.sweep.name, "none")[1]
    return len(standing.stored(run.key for run in planned.runs)) == len(planned.runs)


def _report(planned: PlannedRuns, outcomes: list[Outcome], seconds: float, db: str, options: Options, as_json: bool) -> None:
    """Print the outcomes of the runs.

    Raises:
        SweepError: Some runs failed.
    """
    from dynabro_cli.experiment.label import cell, telling_apart
    from dynabro_cli.store.translation import shown

    counts = Counter(outcome.status for outcome in outcomes)
    also = telling_apart([run.fields for run in planned.runs])
    wrong = [
        {"run": cell(outcome.run.fields, also), "run_key": outcome.run.key, "status": outcome.status, "why": outcome.message}
        for outcome in outcomes
        if outcome.status == "failed"
    ]
    if as_json:
        print_json(
            {"sweep": planned.sweep.name, "runs": len(outcomes), "seconds": seconds}
            | ({} if options.shard is None else {"shard": options.shard})
            | {"status": dict(counts), "failures": wrong}
        )
    else:
        told = [f"{counts[status]} {word}" for status, word in WORDS.items() if counts[status]]
        told = told or ["nothing to do"]
        say(f"{options.entry}: {len(outcomes)} runs in {shown(db)}: {', '.join(told)}; took {duration(seconds)}")
        if wrong:
            emit(("run", "status", "why"), [(row["run"], row["status"], _first_line(row["why"])) for row in wrong])
        named = "" if db == "results.db" else f" --db {shlex.quote(db)}"
        hint(f"next: dynabro plot {planned.sweep.name}{named}")
        hint(f"      dynabro runs --where \"sweep = '{planned.sweep.name}'\"{named}")
    if counts["failed"]:
        raise SweepError(
            f"{counts['failed']} of {len(outcomes)} runs failed; the same command with --retry-failed repeats them"
        )


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
