"""Making the runs of a plan, and what a command tells about them: forecast, code of stored runs, outcomes."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from dynabro_cli.cli.output import duration, emit, named_database, print_json, size, tell_of_code, warn
from dynabro_cli.cli.terminal import complain, hint, say
from dynabro_cli.components import parse_whole
from dynabro_cli.errors import SpecError, SweepError, first_line

if TYPE_CHECKING:
    from dynabro_cli.components.digests import CodeComparison
    from dynabro_cli.executors._api import Options, Outcome, Status
    from dynabro_cli.executors.crew import Crew
    from dynabro_cli.grid.plan import PlannedRuns
    from dynabro_cli.store.repetition import Rerun

WORDS: dict[Status, str] = {
    "finished": "finished",
    "diverged": "diverged",
    "stored": "stored before",
    "failed": "failed",
    "interrupted": "not run",
}

FIRST = 2
"""Processes that start before the number of runs at a time is known."""


def code_of(planned: PlannedRuns, db: str, options: Options) -> tuple[CodeComparison, bool]:
    """Compare the code of a plan's stored runs with the current code; also return True if an interrupted rerun is continued."""
    from dynabro_cli.store.repetition import UpTo, stand

    repeat, standing = stand(db, options.entry, options.rerun)
    return standing.compare(run.key for run in planned.runs), isinstance(repeat, UpTo) and repeat.goes_on


def tell_of_rerun(code: CodeComparison, goes_on: bool, rerun: Rerun) -> None:
    """Report stored runs of other code, and what a rerun does about them, one line each."""
    advice = {"none": "--rerun-changed repeats these runs", "changed": "these runs are repeated", "all": ""}[rerun]
    tell_of_code(code, advice)
    if rerun == "changed" and code.unknown:
        complain(f"stored runs of which the code is not known: {code.unknown} of {code.runs}; --rerun repeats these, too")
    if goes_on:
        complain("an interrupted rerun is continued: its finished runs are not repeated")


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
    tell_of_rerun(ahead.code, ahead.goes_on, options.rerun)
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


def run_all(
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
    if on_ray:
        return _make(planned, db, options, None, address, quiet)
    from dynabro_cli.executors.crew import Crew
    from dynabro_cli.machine.cores import cores
    from dynabro_cli.machine.host_memory import free_host_memory

    free = free_host_memory()
    with contextlib.closing(Crew()) as crew:
        for place in range(min(options.jobs or FIRST, cores(), len(planned.runs))):
            crew.start(place)  # which takes seconds, as what comes before the first run does here: both load torch
        return _make(planned, db, options if options.force else _fitting(planned, db, options, free), crew, None, quiet)


def _fitting(planned: PlannedRuns, db: str, options: Options, free: float | None) -> Options:
    """Return the options with as many jobs as fit into the free memory, and report fewer than asked for."""
    from dynabro_cli.executors.fitting import with_room

    fitting = with_room(planned.runs, options, db, free)
    if fitting.jobs != options.jobs:
        complain(f"{fitting.jobs} runs at a time, as many as fit into the free memory")
    return fitting


def _make(
    planned: PlannedRuns, db: str, options: Options, crew: Crew | None, address: str | None, quiet: bool
) -> list[Outcome]:
    """Make runs by the processes of ``crew``, or without one on Ray."""
    from dynabro_cli.cli.sweep_progress import SweepProgress
    from dynabro_cli.executors.processes import execute_all
    from dynabro_cli.executors.ray_cluster import execute_all_on_ray
    from dynabro_cli.grid.forecast import run_seconds
    from dynabro_cli.store.engine import open_for_writing
    from dynabro_cli.store.side_files import SideFiles

    engine = open_for_writing(db)
    files = SideFiles.of(engine.url, warn)
    files.probe()
    seconds = {} if crew is None else run_seconds(planned.runs, db, device=options.device)
    with SweepProgress(planned.runs, quiet=quiet, seconds=seconds) as progress:
        if crew is None:
            return execute_all_on_ray(planned.runs, engine, options, progress, files=files, address=address)
        return execute_all(planned.runs, engine, options, progress, files=files, crew=crew)


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
            emit(("run", "status", "why"), [(row["run"], row["status"], first_line(row["why"] or "")) for row in wrong])
        named = named_database(db)
        hint(f"next: dynabro plot {planned.sweep.name}{named}")
        hint(f"      dynabro runs --where \"sweep = '{planned.sweep.name}'\"{named}")
    if counts["failed"]:
        raise SweepError(
            f"{counts['failed']} of {len(outcomes)} runs failed; the same command with --retry-failed repeats them"
        )
