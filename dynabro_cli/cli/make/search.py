"""``dynabro search``: look for the strongest adversary, or for the best hyper-parameters."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.completion import complete, files
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
from dynabro_cli.cli.search_results import REPEATS, check_optuna, report
from dynabro_cli.core.errors import SpecError, SweepError, many
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.making import opened
from dynabro_cli.runs.screen.output import duration, print_json, tell_of_code, warn
from dynabro_cli.runs.screen.terminal import complain, say

if TYPE_CHECKING:
    from dynabro_cli.experiment.grid.search import Search
    from dynabro_cli.runs.search.outlook import Outlook
    from dynabro_cli.runs.store.write.standing import Rerun

SearchName = Annotated[
    str,
    typer.Argument(
        metavar="FILE|NAME|-",
        help="A YAML file, a search of 'dynabro list searches', or standard input.",
        autocompletion=complete(files("searches")),
    ),
]
OwnName = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name in the database. [default: the file's]"),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print what is found, or the size of the search, as JSON.")
]
REPEATED = "their trials are repeated"
"""A note, if trials were made with other code."""


@making({}, without=("tags", "note"))
def search(
    name: SearchName,
    *,
    settings: Settings = None,
    saved_as: OwnName = None,
    dry_run: DryRun = False,
    db: Database = "results.db",
    how: Options,
    retry_failed: RetryFailed = False,
    rerun_changed: RerunChanged = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    metrics: Metrics = None,
    plugin: Plugins = None,
) -> None:
    """Search a space of specs for the lowest or highest value, with trials that are stored runs.

    The same command resumes an interrupted search, and several commands can work on one search.
    Needs the extra 'search'.

    Example: dynabro search worst-adversary --set aggregator=gm --set trials=40 --dry-run
    """
    check_optuna()
    from dynabro_cli.experiment.grid.search_file import load_search
    from dynabro_cli.experiment.grid.sweep_file import name_problem
    from dynabro_cli.runs.executors import backends
    from dynabro_cli.runs.search.outlook import outlook

    asked = load_search(name, settings or (), run_plugins=not dry_run)
    if saved_as is not None:
        if problem := name_problem(saved_as):
            raise SpecError(f"--name: {problem}")
        asked = replace(asked, sweep=replace(asked.sweep, name=saved_as))
    rerun: Rerun = "changed" if rerun_changed else "none"
    options = replace(how, sweep=asked.sweep.name, retry_failed=retry_failed, rerun=rerun)
    backends.check(options)
    ahead = outlook(asked)
    for choice in ahead.idle:
        warn(f"{choice}: no combination with it can run, so it is never proposed")
    if dry_run:
        _foretell(asked, ahead, db, options, as_json)
    else:
        _make(asked, ahead, db, options, as_json=as_json, quiet=quiet)


def _foretell(search: Search, ahead: Outlook, db: str, options: Options, as_json: bool) -> None:
    """Print the size of a search, its space, and its duration."""
    from dynabro_cli.answers.analysis.forecast import forecast
    from dynabro_cli.cli.make.sweep_runs import places_ahead
    from dynabro_cli.runs.store.open.translation import shown
    from dynabro_cli.runs.store.write.standing import Standing

    places = places_ahead(ahead.samples, options)
    jobs = max(places.of(run).jobs for run in ahead.samples)
    each = forecast(ahead.samples, db, standing=Standing(None), place=places.of)
    seconds = (
        None
        if each.timed < len(ahead.samples)
        else (each.seconds or 0) * ahead.runs / len(ahead.samples) / jobs
    )
    stored = _stored(search, db, options.rerun)
    begun, ended = stored.total(), stored.total() - stored["running"]
    choices = {axis.label: [entry.label for entry in axis.entries] for axis in search.space.axes}
    if as_json:
        sizes = {
            "searches": ahead.searches,
            "trials": ahead.trials,
            "runs": ahead.runs,
            "trials_begun": begun,
        }
        space = {"combinations": ahead.combinations, "legal": ahead.legal, "space": choices}
        print_json(
            {
                "search": search.sweep.name,
                **sizes,
                "trials_ended": ended,
                **space,
                "seconds": seconds,
                "jobs": jobs,
            }
        )
        return
    say(f"{search.sweep.name}: {search.sweep.description}".rstrip(": "))
    apart = (
        "" if ahead.searches == 1 else f" in {ahead.searches} searches, one per point of the grid"
    )
    seeds = many(len(search.seeds), "seed")
    say(
        f"{ahead.trials} trials{apart}, each a mean over {seeds}: at most {ahead.runs} runs "
        "with what follows"
    )
    for label, entries in choices.items():
        say(f"  {label}: {', '.join(entries)}")
    illegal = ahead.combinations - ahead.legal
    never = f"; {illegal} of them cannot run and are never proposed" if illegal else ""
    given = f"; first: {many(len(search.first), 'given choice')}" if search.first else ""
    ranges = ", each with the numbers of its ranges" if search.space.has_ranges else ""
    say(f"space: {ahead.combinations} combinations{ranges}{never}{given}")
    say(f"{begun} trials begun in {shown(db)}, {ended} ended")
    if seconds is None:
        say(f"time: no estimate, because no similar run is in {shown(db)}")
    else:
        say(
            f"time of all trials: about {duration(seconds)} with {jobs} at a time, at the "
            "speed of stored runs"
        )


def _stored(search: Search, db: str, rerun: Rerun) -> Counter[str]:
    """Return the number of stored trials by status; print a line if their code has changed.

    Raises:
        SpecError: A sweep, or another search, is stored under the search's name.
    """
    from dynabro_cli.answers.analysis.search_findings import code_of
    from dynabro_cli.core.errors import EmptyDatabaseError, NotFoundError
    from dynabro_cli.runs.search.conduct import with_stored_spelling
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.searches import trials_of

    try:
        engine = open_read_only(db)
    except (NotFoundError, EmptyDatabaseError):
        return Counter()
    with engine.connect() as connection:
        search = with_stored_spelling(search, connection)
        tell_of_code(code_of(search, connection), REPEATED if rerun == "changed" else REPEATS)
        return Counter(
            row.status for name, _ in search.points() for row in trials_of(connection, name)
        )


def _make(
    search: Search, ahead: Outlook, db: str, options: Options, *, as_json: bool, quiet: bool
) -> None:
    """Make the trials, and print what they have found."""
    began = time.monotonic()
    with opened(_representatives(ahead), db, options, complain, most=ahead.runs) as (
        engine,
        places,
        files,
    ):
        from dynabro_cli.answers.analysis.search_findings import code_of, findings
        from dynabro_cli.runs.screen.progress import TrialsProgress
        from dynabro_cli.runs.search.conduct import conduct
        from dynabro_cli.runs.store.open.engine import open_read_only

        stored = _stored(search, db, options.rerun)
        to_do = stored["running"] + (stored["failed"] if options.retry_failed else 0)
        with TrialsProgress(search, ahead.trials, stored.total() - to_do, quiet=quiet) as progress:
            search = conduct(search, engine, places, progress, runs=ahead.runs, files=files)
    # not with the engine that writes: its transactions keep others from writing
    with open_read_only(db).connect() as connection:
        results, code = findings(search, connection), code_of(search, connection)
    report(search, results, time.monotonic() - began, db, as_json)
    tell_of_code(code, REPEATS)
    problems = [
        search_findings.problem
        for search_findings in results
        if search_findings.problem is not None
    ]
    if problems:
        raise SweepError(f"{'; '.join(problems)}. Try: the same command with --retry-failed")


def _representatives(ahead: Outlook) -> list[Any]:
    """Return runs by which the memory is estimated: a run of each search, and at least two, because
    several run at a time.
    """
    return [
        *ahead.samples,
        *(
            run.with_seed(run.spec.seed + 1)
            for run in ahead.samples[:1]
            if len(ahead.samples) < ahead.runs
        ),
    ]
