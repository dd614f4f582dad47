"""``dynabro db``: maintenance of the database."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynabro_cli.cli.options import Database, Force, Plugins
from dynabro_cli.core.errors import DatabaseError, SpecError, many
from dynabro_cli.runs.screen.output import emit, print_json, size, tell_of_code
from dynabro_cli.runs.screen.terminal import complain, note, say

if TYPE_CHECKING:
    from dynabro_cli.runs.store.care.merge import Difference, Merged

MOST_LINES = 20
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]

app = typer.Typer(help="Maintain the results database.", no_args_is_help=True)


@app.callback()
def care() -> None:
    """Maintain the results database."""


@app.command()
def check(db: Database = "results.db", as_json: AsJson = False, plugin: Plugins = None) -> None:
    """Read the whole database, and list damage and rows that do not agree.

    Example: dynabro db check --db results.db
    """
    from dynabro_cli.runs.store.care import check as checks
    from dynabro_cli.runs.store.open.translation import shown

    report = checks.check(db)
    if as_json:
        print_json({"database": shown(db)} | asdict(report))
    else:
        statuses = ", ".join(f"{count} {status}" for status, count in report.statuses.items())
        counts = f"{sum(report.statuses.values())} runs{statuses and f' ({statuses})'}"
        if report.statuses or not report.problems:
            say(f"{shown(db)}: {counts}, {report.rounds} rounds, {report.evaluations} evaluations")
        _list("note: ", report.notes)
        _list("", report.problems)
        if not report.problems:
            say("no problem found")
    if report.problems:
        raise DatabaseError(
            f"{shown(db)} has {many(len(report.problems), 'problem')}. Try: restore a backup; "
            f"or dynabro db merge {shown(db)} "
            "--db NEW.db, which copies the intact runs; then repeat the other runs with --db NEW.db"
        )


@app.command()
def backup(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="File of the copy; by default beside the database."),
    ] = None,
    db: Database = "results.db",
    force: Force = False,
    plugin: Plugins = None,
) -> None:
    """Copy an SQLite database while others may write to it.

    Example: dynabro db backup results-of-may.db
    """
    from dynabro_cli.runs.store.care.copies import back_up
    from dynabro_cli.runs.store.open.translation import shown

    copy = back_up(db, file, force=force)
    say(f"{shown(db)} copied to {copy.path} ({size(copy.size)})")


@app.command()
def thin(
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="File of the copy; it must not exist yet.")
    ],
    every: Annotated[
        int,
        typer.Option(
            "--every", metavar="K", help="Keep every K-th round, and the first and the last."
        ),
    ],
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="SQL",
            help="Thin only runs for which this SQL condition holds; others stay complete.",
        ),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(
            "--points",
            metavar="SQL",
            help="Keep the models x of evaluations only of runs for which this SQL condition "
            "holds.",
        ),
    ] = None,
    anonymous: Annotated[
        bool,
        typer.Option(
            "--anonymous", help="Remove hosts, processes and commits, as for a double-blind review."
        ),
    ] = False,
    db: Database = "results.db",
    force: Force = False,
    plugin: Plugins = None,
) -> None:
    """Copy the results of an SQLite database to a smaller file, to give away or publish.

    Every K-th row of rounds is kept, and the histogram of Byzantine workers over all rounds. The
    labels of each worker's samples, and runs without a result, are left out. The database itself
    does not change.

    Example: dynabro db thin small.db --every 100 --where "task <> 'quadratic'" --anonymous
    """
    from dynabro_cli.runs.screen.progress import CountProgress
    from dynabro_cli.runs.store.care import thin as thinning
    from dynabro_cli.runs.store.open.translation import shown

    with CountProgress("runs") as progress:
        copy = thinning.thin(
            db,
            target,
            every,
            where=where,
            points=points,
            anonymous=anonymous,
            force=force,
            progress=progress,
        )
    parts = [f"{many(copy.runs, 'run')}, {copy.rows_before} -> {copy.rows_after} rows of rounds"]
    parts.append(f"{size(copy.size_before)} -> {size(copy.size_after)}")
    if copy.kept:
        parts.append(f"{copy.kept} unchanged, because {every} is not a multiple of their earlier K")
    if copy.left_out:
        parts.append(f"{copy.left_out} without a result skipped")
    say(f"{shown(db)} thinned to {target}: {', '.join(parts)}")


@app.command()
def merge(
    other: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL", help="The database whose runs are copied; it is only read."
        ),
    ],
    db: Database = "results.db",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and write nothing.")
    ] = False,
    as_json: AsJson = False,
    plugin: Plugins = None,
) -> None:
    """Copy the runs of another database into this one.

    Results that are here already stay. The other database may be untrusted: damaged runs in it are
    listed and not merged.

    Example: dynabro db merge from-the-other-machine.db --db results.db
    """
    from dynabro_cli.experiment.comparison import CodeComparison
    from dynabro_cli.runs.screen.progress import CountProgress
    from dynabro_cli.runs.store.care import merge as merging
    from dynabro_cli.runs.store.open.translation import shown

    with CountProgress("runs") as progress:
        merged = merging.merge(other, db, dry_run=dry_run, progress=progress)
    if as_json:
        print_json(
            {"database": shown(db), "other": shown(other), "dry_run": dry_run} | asdict(merged)
        )
    else:
        _warn(merged)
        tell_of_code(CodeComparison(versions=merged.versions))
        say(
            _summary(
                merged, f"{shown(other)} {'would be ' if dry_run else ''}merged into {shown(db)}"
            )
        )
    wrong = [
        (merged.unsound, "run"),
        (merged.unsound_kappas, "kappa"),
        (merged.unsound_rows, "row"),
    ]
    if any(damaged for damaged, _ in wrong):
        counts = " and ".join(many(len(damaged), name) for damaged, name in wrong if damaged)
        raise DatabaseError(
            f"{counts} of {shown(other)} not merged, because of damage. Try: dynabro db check "
            f"--db {shown(other)}"
        )


@app.command()
def remove(
    where: Annotated[
        str,
        typer.Option(
            "--where", metavar="SQL", help="Remove the runs for which this SQL condition holds."
        ),
    ],
    db: Database = "results.db",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed, and write nothing.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Remove runs for good: all their rows, checkpoints and logs.

    The command lists the runs and asks. All of them are removed or none. Runs that a live process
    is making are refused.

    Example: dynabro db remove --where "status = 'failed'" --dry-run
    """
    from dynabro_cli.runs.store.care import remove as removing
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.open.translation import shown
    from dynabro_cli.runs.store.read.queries import list_runs, warn_of_missed

    removal = removing.choose(db, where)
    warn_of_missed(open_read_only(db), where or "")
    if not removal.runs:
        say(f"no run of {shown(db)} is removed: no run fulfils {where}")
        return
    first = ", ".join(str(run.id) for run in removal.runs[:MOST_LINES])
    table = list_runs(open_read_only(db), f"id IN ({first})")
    emit(table.columns, table.rows)
    if len(removal.runs) > MOST_LINES:
        say(f"... and {len(removal.runs) - MOST_LINES} more")
    statuses = ", ".join(f"{count} {status}" for status, count in removal.statuses.items())
    files = many(len(removal.files), "checkpoint or log file")
    what = f"{many(len(removal.runs), 'run')} ({statuses}) of {shown(db)}, with {files}"
    if dry_run:
        say(f"would be removed: {what}")
        return
    if not (yes or _confirmed(f"remove {what} for good?")):
        say("nothing is removed")
        return
    remaining = removing.remove(db, removal)
    say(f"removed: {what}")
    if remaining:
        complain(
            f"warning: {many(len(remaining), 'file')} could not be removed, such as {remaining[0]}"
            "; change permissions, and remove them"
        )


def _confirmed(question: str) -> bool:
    """Ask for confirmation on the terminal.

    Raises:
        SpecError: There is no terminal.
    """
    if not sys.stdin.isatty():
        raise SpecError(
            "nothing is removed, because standard input is not a terminal. Try: --yes, or "
            "--dry-run, which lists the runs"
        )
    note(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _list(begin: str, lines: list[str]) -> None:
    for line in lines[:MOST_LINES]:
        say(begin + line)
    if len(lines) > MOST_LINES:
        say(f"{begin}... and {len(lines) - MOST_LINES} more")


def _warn(merged: Merged) -> None:
    """List on standard error what a user may need to check."""
    lines = [
        f"run {number} of the other database was not merged: {'; '.join(problems)}"
        for number, problems in merged.unsound.items()
    ]
    lines += [
        f"kappa {number} of the other database was not merged: {'; '.join(problems)}"
        for number, problems in merged.unsound_kappas.items()
    ]
    lines += [f"of the other database not merged: {line}" for line in merged.unsound_rows]
    lines += [f"run {key[:10]} was not merged: it is in progress here" for key in merged.held]
    lines += [
        f"trials of {name} were not merged, but their runs: another search of this name, or "
        "another spelling of it, is here"
        for name in merged.other_searches
    ]
    lines += [f"run {item.run_key[:10]} differs: {_ends(item)}" for item in merged.different]
    for line in lines[:MOST_LINES]:
        complain(line)
    if len(lines) > MOST_LINES:
        complain(f"... and {len(lines) - MOST_LINES} more; --json lists all")


def _ends(item: Difference) -> str:
    """Describe both ends of a run in a few words."""
    ends = []
    other = item.here["cpu_capability"] != item.there["cpu_capability"]
    for row, where in ((item.here, "here"), (item.there, "there")):
        numbers = [
            f"{name.removeprefix('final_')} {row[name]!r}"
            for name in ("final_accuracy", "final_loss", "final_gap")
            if row[name] is not None
        ]
        made = f", with {row['cpu_capability'] or 'unknown vector instructions'}" if other else ""
        ends.append(
            f"{where} {row['status']} after {row['rounds']} rounds, "
            f"{', '.join(numbers) or 'without numbers'}{made}"
        )
    return "; ".join(ends)


def _summary(merged: Merged, what: str) -> str:
    parts = [many(len(merged.copied), "run") + " copied"]
    if merged.replaced:
        parts.append(f"{len(merged.replaced)} replaced a run without a result")
    if merged.here:
        differ = (
            f" ({len(merged.different)} of them with other numbers)" if merged.different else ""
        )
        parts.append(f"{merged.here} already here{differ}")
    if merged.held:
        parts.append(f"{len(merged.held)} in progress here")
    if merged.left:
        parts.append(f"{merged.left} without a result skipped")
    if merged.unsound:
        parts.append(f"{len(merged.unsound)} damaged and not merged")
    if merged.kappas:
        parts.append(f"{many(merged.kappas, 'finding')} of verify kappa copied")
    if merged.trials:
        parts.append(f"{many(merged.trials, 'trial')} of searches copied")
    return f"{what}: {', '.join(parts)}"
