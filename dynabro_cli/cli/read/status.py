"""``dynabro status``: show the state of a database from any terminal."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.options import Database, Plugins
from dynabro_cli.core.errors import (
    BusyError,
    DisconnectedError,
    EmptyDatabaseError,
    NotFoundError,
    PreemptedError,
    SpecError,
)
from dynabro_cli.runs.screen.output import duration, finite, print_json, sparkline, table_lines
from dynabro_cli.runs.screen.terminal import as_line, is_terminal, say

if TYPE_CHECKING:
    from dynabro_cli.runs.store.read.status import DatabaseState, RunState, SweepState

COLUMNS = (
    "id",
    "done",
    "score",
    "curve",
    "run",
    "Byzantine",
    "budget",
    "rounds",
    "last sign",
    "process",
)
ENDED = "terminated; this view has ended, and runs in progress continue"
WIDTH = 10
"""Letters of a curve."""
Curves = Mapping[int, str]
BUSY_SECONDS = 1.0
"""Seconds to wait for a lock on the database between two views; then the last view is shown
again.
"""


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="Seconds between two views of --watch."),
    ] = 2,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object; with --watch one per line, repeatedly."
        ),
    ] = False,
    db: Database = "results.db",
    plugin: Plugins = None,
) -> None:
    """Show the sweeps and runs in progress, their progress, and the last failures. Read-only; safe
    at any time.

    Example: dynabro status --db results.db
    """
    from dynabro_cli.runs.store.read.status import read_status

    if not interval < float("inf"):
        raise SpecError(
            f"interval={interval} is not legal. Try: --interval with a number of seconds"
        )
    if watch:
        try:
            _watch(db, interval, as_json)
        except KeyboardInterrupt:  # the usual end of --watch
            return
        except PreemptedError:
            raise PreemptedError(ENDED) from None
    elif as_json:
        print_json(dataclasses.asdict(read_status(db)))
    else:
        now = read_status(db)
        say(*_lines(now, _curves(db, now)))


def _watch(db: str, interval: float, as_json: bool) -> None:
    """Show the status every few seconds: in place on a terminal, one after another elsewhere."""
    if as_json or not is_terminal():
        for now, problem in _views(db, interval):
            if as_json and now is not None:
                say(json.dumps(finite(dataclasses.asdict(now)), default=str), flush=True)
            elif not as_json:
                say(
                    *(_lines(now, _curves(db, now)) if now else []),
                    *([problem] if problem else []),
                    "",
                    flush=True,
                )
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False) as live:
        lines: list[str] = []
        for now, problem in _views(db, interval):
            lines = lines if now is None else _lines(now, _curves(db, now))
            shown = [*lines, "", problem or "Ctrl-C ends this view; the runs continue"]
            live.update(Text("\n".join(shown), no_wrap=True, overflow="ellipsis"), refresh=True)


def _views(db: str, interval: float) -> Iterator[tuple[DatabaseState | None, str | None]]:
    """Yield the status every few seconds; a note instead if it cannot be read for now."""
    from dynabro_cli.runs.store.open.translation import shown
    from dynabro_cli.runs.store.read import status as stored

    seen = False
    while True:
        try:
            yield stored.read_status(db, patience=BUSY_SECONDS), None
            seen = True
        except BusyError:
            yield None, "the database is locked by another program for now; trying again"
        except DisconnectedError:
            yield None, "the database's server cannot be reached for now; trying again"
        except (NotFoundError, EmptyDatabaseError):
            if seen:  # it was removed: nothing is left to wait for
                raise
            yield (
                None,
                f"there is no database {shown(db)} yet; waiting for a run or a sweep that makes it",
            )
        time.sleep(interval)


def _curves(db: str, now: DatabaseState) -> Curves:
    """Return a line of bars for each run in progress, of its accuracies or gaps so far."""
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.queries import query

    runs = [
        run.id
        for run in (*now.other_runs, *(run for sweep in now.sweeps for run in sweep.in_progress))
    ]
    if not runs:
        return {}
    values: dict[int, list[float | None]] = {}
    where = f"run_id IN ({', '.join(str(int(run)) for run in runs)})"
    sql = (
        f"SELECT run_id, COALESCE(gap, test_accuracy) FROM evaluations WHERE {where} ORDER "
        "BY run_id, round"
    )
    try:
        for run, value in query(open_read_only(db), sql).rows:
            values.setdefault(run, []).append(value)
    except (BusyError, DisconnectedError):  # the next view has them
        return {}
    return {run: sparkline(points, WIDTH) for run, points in values.items()}


def _lines(now: DatabaseState, curves: Curves) -> list[str]:
    """Return the status as lines for a terminal."""
    lines = [f"{now.database}, {now.time:%Y-%m-%d %H:%M:%S} UTC"]
    for sweep in now.sweeps:
        lines += ["", *_sweep_lines(sweep, curves)]
    if now.other_runs:
        lines += [
            "",
            "runs in progress" + (" outside these sweeps" if now.sweeps else ""),
            *_run_lines(now.other_runs, curves),
        ]
    for sweep in now.dead_sweeps:
        who = f"process {sweep.pid} on {sweep.host}, last heartbeat {duration(sweep.heard)} ago"
        lines += ["", f"{sweep.name} looks dead ({who}); the same command resumes it"]
    if now.last_sweep is not None:
        lines += ["", _last(now.last_sweep, now)]
    if not now.sweeps and not now.other_runs:
        lines += ["", "nothing is in progress"]
    counts = [f"{count} {status}" for status, count in now.counts.items()]
    lines += ["", f"runs: {', '.join(counts) or 'none'}"]
    if now.failures:
        lines += ["", "last failures"]
        lines += [f"  {run.id}  {run.run}: {run.error}" for run in now.failures]
    return [as_line(line) for line in lines]


def _sweep_lines(sweep: SweepState, curves: Curves) -> list[str]:
    counts = {
        "stored before": sweep.stored_before,
        "finished": sweep.finished,
        "failed": sweep.failed,
        "in progress": len(sweep.in_progress),
        "to go": sweep.to_go,
    }
    shares = ", ".join(
        f"{count} {what}"
        for what, count in counts.items()
        if count or what in ("finished", "to go")
    )
    to_go = "" if sweep.seconds_to_go is None else f", about {duration(sweep.seconds_to_go)} to go"
    how = f"{sweep.jobs} at a time ({sweep.executor}), process {sweep.pid} on {sweep.host}"
    lines = [
        f"{sweep.name}: {sweep.runs} runs: {shares}",
        f"{duration(sweep.elapsed)} so far{to_go}; {how}",
    ]
    return lines + (_run_lines(sweep.in_progress, curves) if sweep.in_progress else [])


def _run_lines(runs: Sequence[RunState], curves: Curves) -> list[str]:
    return [f"  {line}" for line in table_lines(COLUMNS, [_run_cells(run, curves) for run in runs])]


def _run_cells(run: RunState, curves: Curves) -> list[str]:
    score = "-" if run.accuracy is None else f"accuracy {run.accuracy:.4f}"
    heard = "none" if run.heard is None else f"{duration(run.heard)} ago"
    cells: list[Any] = [
        run.id,
        f"{100 * min(run.budget_spent, run.budget) / (run.budget or 1):.0f}%",
        score if run.gap is None else f"gap {run.gap:.4g}",
        curves.get(run.id, ""),
        run.run,
        "-" if run.byzantine_now is None else run.byzantine_now,
        f"{min(run.budget_spent, run.budget)}/{run.budget}",
        run.rounds,
        f"{heard}, looks dead" if run.dead else heard,
        f"{run.host}:{run.pid}",
    ]
    return [str(cell) for cell in cells]


def _last(sweep: SweepState, now: DatabaseState) -> str:
    """Describe the sweep that ended last in a line."""
    counts = {
        "stored before": sweep.stored_before,
        "finished": sweep.finished,
        "failed": sweep.failed,
        "not run": sweep.to_go,
    }
    shares = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    ago = duration(max(0.0, (now.time - sweep.ended_at).total_seconds())) if sweep.ended_at else "?"
    took = duration(sweep.elapsed)
    return f"last sweep: {sweep.name}, {sweep.status} {ago} ago after {took}: {sweep.runs} runs" + (
        f": {shares}" if shares else ""
    )
