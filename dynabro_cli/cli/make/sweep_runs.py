"""Make the runs of a plan, and print a forecast, changes of code, and outcomes."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from dynabro_cli.core.errors import SweepError, first_line
from dynabro_cli.runs.making import make_runs
from dynabro_cli.runs.screen import runs_shown
from dynabro_cli.runs.screen.output import duration, emit, print_json, size, tell_of_code, warn
from dynabro_cli.runs.screen.terminal import complain, hint, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from dynabro_cli.answers.analysis.forecast import Forecast
    from dynabro_cli.experiment.grid.plan import PlannedRuns
    from dynabro_cli.experiment.resolve import Run
    from dynabro_cli.runs.executors._api import Options, Outcome, Status
    from dynabro_cli.runs.executors.placement import Placement
    from dynabro_cli.runs.store.write.standing import Standing

MOST_LINES = 20
"""Most files that are named."""
RESULTS = ("stored", "finished", "diverged")
"""Outcomes of runs that have a result."""
MARGIN = 0.02
"""An accuracy at chance is at most this, or a quarter, above 1/classes: a constant prediction has
up to 0.1135 on MNIST's test set.
"""
WORDS: dict[Status, str] = {
    "finished": "finished",
    "diverged": "diverged",
    "stored": "stored before",
    "failed": "failed",
    "interrupted": "not run",
}


NAMES = {"cpu": "CPU", "cuda": "GPU"}
"""Kinds of devices in sentences."""


def standing_of(planned: PlannedRuns, db: str, options: Options) -> tuple[PlannedRuns, Standing]:
    """Read the state of a plan's runs in the database, once for all who ask; print a line if code
    or data have changed.

    A run that is stored under another text of the same adversary replaces the run of the plan.
    """
    from dynabro_cli.experiment.grid.plan import as_stored
    from dynabro_cli.runs.store.write.standing import read_standing

    rerun = options.rerun
    standing = read_standing(db, options.sweep_row, rerun, options.data_dir)
    planned = as_stored(planned, standing.has)
    code = standing.compare(run.key for run in planned.runs)
    advice = {
        "none": "--rerun-changed repeats these runs",
        "changed": "these runs are repeated",
        "all": "",
    }[rerun]
    tell_of_code(code, advice)
    if rerun == "changed" and code.unknown:
        complain(
            f"stored runs of which the code is not known: {code.unknown} of {code.runs}; "
            "--rerun repeats these, too"
        )
    if standing.goes_on:
        complain("an interrupted rerun is continued: its finished runs are not repeated")
    return planned, standing


def foretell(
    planned: PlannedRuns, db: str, options: Options, as_json: bool, *, whole: int | None = None
) -> None:
    """Print the number of runs to make, their duration, and their disk space; ``whole`` is the
    number of runs of all shards.
    """
    from dynabro_cli.answers.analysis.forecast import forecast
    from dynabro_cli.runs.store.open.translation import shown

    planned, standing = standing_of(planned, db, options)
    retry = options.retry_failed
    to_make = standing.to_make([run.key for run in planned.runs], retry_failed=retry)
    places = places_ahead([run for run in planned.runs if run.key in to_make], options)
    jobs = len(places.devices)
    ahead = forecast(
        planned.runs, db, standing=standing, retry_failed=retry, jobs=jobs, place=places.of
    )
    if as_json:
        print_json(
            {
                "sweep": planned.sweep.name,
                "duplicates": planned.duplicates,
                "excluded": planned.excluded,
            }
            | ({} if options.shard is None else {"shard": options.shard, "whole": whole})
            | asdict(ahead)
        )
        return
    if planned.sweep.extends:
        say(*planned.sweep.text.splitlines(), "")
    say(f"{planned.sweep.name}: {planned.sweep.description}".rstrip(": "))
    part = "" if options.shard is None else f", {ahead.planned} of them in shard {options.shard}"
    dropped = {"duplicates": planned.duplicates, "excluded": planned.excluded}
    words = ", ".join(f"{count} {what}" for what, count in dropped.items() if count)
    count = ahead.planned if whole is None else whole
    say(f"{count} runs planned{f' ({words})' if words else ''}{part}")
    say(*_forecast_lines(ahead, shown(db)))


def _forecast_lines(ahead: Forecast, database: str) -> Iterator[str]:
    """Yield what is stored and to do, how long it takes, and how much space it needs."""
    failed = f", {ahead.failed} failed before (--retry-failed repeats them)" if ahead.failed else ""
    yield f"{ahead.stored} stored in {database}{failed}, {ahead.to_do} to do"
    on = " and ".join(f"the {NAMES[device]}" for device in sorted(ahead.devices))
    if ahead.to_do and ahead.seconds is None:
        yield f"time: no estimate, because no similar run on {on} is in {database}"
    elif ahead.elapsed is not None:
        part = (
            ""
            if ahead.timed == ahead.to_do
            else f" for the {ahead.timed} of them that are similar to stored runs"
        )
        how = ", one after another" if ahead.jobs == 1 else f" with {ahead.jobs} at a time"
        yield (
            f"time: about {duration(ahead.elapsed)}{part}{how}, at the speed of stored runs on {on}"
        )
    if ahead.to_do:
        yield f"database: about {size(ahead.bytes)} more"


def places_ahead(runs: Sequence[Run], options: Options) -> Placement:
    """Return the places that runs would have, and print the lines about them; nothing is
    started.
    """
    from dynabro_cli.core.machine import mps
    from dynabro_cli.runs.executors.placement import placement_of

    places = placement_of(runs, options, mps.at_hand)
    for line in places.notes:
        complain(line)
    return places


def run_all(
    planned: PlannedRuns,
    db: str,
    options: Options,
    models: Path | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make the runs of a plan, save their models, and print the outcomes."""
    from dynabro_cli.runs.store.care.models import ModelFolder, saved_models

    began = time.monotonic()
    planned, standing = standing_of(planned, db, options)
    folder = None if models is None else ModelFolder(models, db)
    if folder is not None:
        folder.check()
    outcomes = make_runs(
        planned, db, options, complain, runs_shown(quiet=quiet), folder, standing=standing
    )
    ended = [outcome.run.key for outcome in outcomes if outcome.status in RESULTS]
    if folder is not None and ended:
        saved = saved_models(db)
        files = [folder.of(key) for key in ended]
        problems = [
            (file.target, file.problem(saved.get(key)))
            for key, file in zip(ended, files, strict=True)
        ]
        wrong = [f"{target}: {problem}" for target, problem in problems if problem is not None]
        for line in wrong[:MOST_LINES]:
            complain(line)
        if wrong:
            warn(
                f"{len(wrong)} of {len(ended)} runs have no model in {models}; --rerun repeats runs"
            )
    _report(planned, outcomes, time.monotonic() - began, db, options, as_json)


def _report(
    planned: PlannedRuns,
    outcomes: list[Outcome],
    seconds: float,
    db: str,
    options: Options,
    as_json: bool,
) -> None:
    """Print the outcomes of the runs.

    Raises:
        SweepError: Some runs failed.
    """
    from dynabro_cli.experiment.label import cell, telling_apart
    from dynabro_cli.runs.store.open.translation import shown

    counts = Counter(outcome.status for outcome in outcomes)
    also = telling_apart([run.fields for run in planned.runs])
    wrong = [
        {
            "run": cell(outcome.run.fields, also),
            "run_key": outcome.run.key,
            "status": outcome.status,
            "why": outcome.message,
        }
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
        shares = [f"{counts[status]} {word}" for status, word in WORDS.items() if counts[status]]
        shares = shares or ["nothing to do"]
        say(
            f"{options.sweep_row}: {len(outcomes)} runs in {shown(db)}: {', '.join(shares)}; took "
            f"{duration(seconds)}"
        )
        if wrong:
            emit(
                ("run", "status", "why"),
                [(row["run"], row["status"], first_line(row["why"] or "")) for row in wrong],
            )
        name = planned.sweep.name
        hint(f"next: dynabro plot {'matrix ' if planned.sweep.grid else ''}{name}")
        hint(f"      dynabro report {name}")
    if not as_json and (line := _at_chance(outcomes, db)):
        say(line)
    if counts["failed"]:
        raise SweepError(
            f"{counts['failed']} of {len(outcomes)} runs failed; the same command with "
            "--retry-failed repeats them"
        )


def _at_chance(outcomes: Sequence[Outcome], db: str) -> str:
    """Return a line if no run with an accuracy is better than a constant prediction; else an empty
    text. A run that diverged counts as 1/classes.
    """
    from dynabro_cli.answers.analysis.diverged import DIVERGED, counted_as
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.queries import among, query

    keys = [outcome.run.key for outcome in outcomes if outcome.status in RESULTS]
    sql = (
        "SELECT task, model, code_digests, status, final_accuracy FROM runs "
        f"WHERE model IS NOT NULL AND {among('run_key', keys)}"
    )
    count = 0
    for *what, status, accuracy in query(open_read_only(db), sql).rows if keys else ():
        chance = counted_as("final_accuracy", *what)
        # classes of a test set are not equally frequent
        if status != DIVERGED and not (accuracy or 0) <= chance + min(chance / 4, MARGIN):
            return ""
        count += 1
    if not count:
        return ""
    return (
        f"all {count} runs with an accuracy are at chance: a constant prediction is as good. "
        "Try: a larger budget, or --set attack=none, which shows whether the attack is the reason"
    )
