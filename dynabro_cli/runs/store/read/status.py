"""State of a database: its sweeps and runs in progress, and how the last ones ended."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, func, select

from dynabro_cli.core.errors import first_line, last_line
from dynabro_cli.experiment.label import labels
from dynabro_cli.runs.store.open.engine import open_read_only
from dynabro_cli.runs.store.open.translation import shown, translated_errors
from dynabro_cli.runs.store.ownership import database_time, presumed_dead, silence
from dynabro_cli.runs.store.tables import (
    RERUN_SUFFIX,
    RESULT_STATUSES,
    evaluations,
    rounds,
    runs,
    sweep_runs,
    sweeps,
)

LAST_FAILURES = 5


@dataclass(frozen=True)
class RunState:
    """A run in progress.

    Attributes:
        run: A short name.
        accuracy: Accuracy at its last evaluation, or None. Likewise ``gap``.
        byzantine_now: Byzantine workers in its last stored round.
        heard: Seconds since the last heartbeat; None without one.
        dead: True if its process is presumed dead.
    """

    id: int
    run_key: str
    run: str
    sweep: str | None
    budget: int
    budget_spent: int
    rounds: int
    accuracy: float | None
    gap: float | None
    byzantine_now: int | None
    heard: float | None
    host: str
    pid: int
    dead: bool


@dataclass(frozen=True)
class SweepState:
    """A sweep.

    Attributes:
        runs: Number of its runs; ``stored_before`` of them were stored before and are not made.
        finished: Runs with a result since its start, here or elsewhere, including diverged ones.
        to_go: Runs that have not started.
        elapsed: Seconds from its start to now, or to its end.
        seconds_to_go: Estimate from the speed so far; None if it is not known.
        dead: True if its process is presumed dead.
        heard: Seconds since its last heartbeat.
        in_progress: Its runs in progress.
    """

    id: int
    name: str
    status: str
    runs: int
    stored_before: int
    finished: int
    failed: int
    to_go: int
    jobs: int
    executor: str
    started_at: dt.datetime
    ended_at: dt.datetime | None
    elapsed: float
    seconds_to_go: float | None
    host: str
    pid: int
    heard: float
    dead: bool
    in_progress: tuple[RunState, ...]


@dataclass(frozen=True)
class FailedRun:
    """A failed run, and the reason in one line."""

    id: int
    run: str
    error: str


@dataclass(frozen=True)
class DatabaseState:
    """The whole state at one time.

    Attributes:
        sweeps: Sweeps in progress.
        dead_sweeps: Sweeps that stopped without an end and were not started again.
        other_runs: Runs in progress that belong to none of ``sweeps``.
        counts: Number of runs by status.
        failures: The last failures, newest first.
        last_sweep: Of the sweeps that have ended, the one that started last; None while one is in
            progress.
    """

    database: str
    time: dt.datetime
    sweeps: tuple[SweepState, ...]
    dead_sweeps: tuple[SweepState, ...]
    other_runs: tuple[RunState, ...]
    counts: dict[str, int]
    failures: tuple[FailedRun, ...]
    last_sweep: SweepState | None


class _Live(NamedTuple):
    """A run in progress, its owner, and its duration in seconds, including the time before this
    sweep.
    """

    state: RunState
    owner: str | None
    wall: float | None


def read_status(database: str, *, patience: float | None = None) -> DatabaseState:
    """Read the state over a read-only connection, which is closed at once.

    Args:
        database: A path or a URL.
        patience: Seconds to wait for another program's lock; None for the usual time.

    Raises:
        NotFoundError: There is no such database.
        BusyError: Another program has locked it.
        DynabroError: The file is not a dynabro database, or cannot be read.
    """
    with _reading(database, patience) as connection:
        now = database_time(connection)
        grouped = connection.execute(
            select(runs.c.status, func.count()).group_by(runs.c.status).order_by(runs.c.status)
        )
        counts = {row[0]: row[1] for row in grouped}
        live = _runs_in_progress(connection, now) if "running" in counts else []
        entries = connection.execute(select(sweeps).order_by(sweeps.c.id)).mappings().all()
        names = {row["name"]: row["id"] for row in entries}  # the last of each name
        states = [
            _sweep(connection, row, live, now)
            for row in entries
            if row["status"] == "running"
            and (names[row["name"]] == row["id"] or not presumed_dead(row, now))
        ]
        active = tuple(state for state in states if not state.dead)
        of_sweeps = {run.id for state in active for run in state.in_progress}
        # the last by number, because clocks can be set
        ended = [row for row in entries if row["ended_at"] is not None]
        last = None if active or not ended else ended[-1]
        return DatabaseState(
            database=shown(database),
            time=now,
            sweeps=active,
            dead_sweeps=tuple(state for state in states if state.dead),
            other_runs=tuple(run.state for run in live if run.state.id not in of_sweeps),
            counts=counts,
            failures=tuple(_failures(connection)) if "failed" in counts else (),
            last_sweep=None if last is None else _sweep(connection, last, [], now),
        )


@contextmanager
def _reading(database: str, patience: float | None) -> Iterator[Connection]:
    engine = open_read_only(database, patience=patience)
    try:
        with translated_errors(engine.url), engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _runs_in_progress(connection: Connection, now: dt.datetime) -> list[_Live]:
    """Return the runs that are stored as ``running``."""
    last_round = (
        select(func.max(rounds.c.round))
        .where(rounds.c.run_id == runs.c.id)
        .correlate(runs)
        .scalar_subquery()
    )
    last = (
        select(func.max(evaluations.c.round))
        .where(evaluations.c.run_id == runs.c.id)
        .correlate(runs)
        .scalar_subquery()
    )
    both = runs.outerjoin(
        rounds, (rounds.c.run_id == runs.c.id) & (rounds.c.round == last_round)
    ).outerjoin(evaluations, (evaluations.c.run_id == runs.c.id) & (evaluations.c.round == last))
    now_columns = (
        rounds.c.byzantine.label("byzantine_now"),
        evaluations.c.test_accuracy,
        evaluations.c.gap,
    )
    chosen = (
        select(runs, *now_columns)
        .select_from(both)
        .where(runs.c.status == "running")
        .order_by(runs.c.id)
    )
    rows = connection.execute(chosen).mappings().all()
    return [
        _Live(_run(row, label, now), row["owner"], row["wall_seconds"])
        for row, label in zip(rows, labels([dict(row) for row in rows]), strict=True)
    ]


def _run(row: RowMapping, label: str, now: dt.datetime) -> RunState:
    values = {name: row[name] for name in RunState.__annotations__ if name in row}
    dead = presumed_dead(row, now)
    return RunState(
        **values, run=label, accuracy=row["test_accuracy"], heard=silence(row, now), dead=dead
    )


def _sweep(
    connection: Connection, row: RowMapping, live: Sequence[_Live], now: dt.datetime
) -> SweepState:
    """Return a sweep with its runs in progress, that is, the runs of its process."""
    live_runs = [run for run in live if _process(run.owner) == _process(row["owner"])]
    made = _made(connection, row)
    finished = sum(run["status"] in RESULT_STATUSES for run in made)
    failed = sum(run["status"] == "failed" for run in made)
    values = {name: row[name] for name in SweepState.__annotations__ if name in row}
    to_go = max(0, row["runs"] - row["stored_before"] - finished - failed - len(live_runs))
    listed = select(sweep_runs).where(sweep_runs.c.sweep_id == row["id"]).limit(1)
    if row["ended_at"] is not None and connection.execute(listed).first() is None:
        to_go = 0  # a copy of a database may lack the list; then nothing is known of its runs
    dead = row["status"] == "running" and presumed_dead(row, now)
    return SweepState(
        **values,
        finished=finished,
        failed=failed,
        to_go=to_go,
        elapsed=_seconds(row["started_at"], row["ended_at"] or now)
        if row["wall_seconds"] is None
        else row["wall_seconds"],
        seconds_to_go=None
        if dead or row["status"] != "running"
        else _seconds_to_go(row["started_at"], now, to_go, made, live_runs),
        heard=silence(row, now) or 0.0,
        dead=dead,
        in_progress=tuple(run.state for run in live_runs),
    )


def _made(connection: Connection, row: RowMapping) -> Sequence[RowMapping]:
    """Return the runs on a sweep's list that have ended since its start, here or in another
    process.
    """
    columns = (
        runs.c.status,
        runs.c.budget,
        runs.c.budget_spent,
        runs.c.wall_seconds,
        runs.c.finished_at,
    )
    mine = sweep_runs.c.sweep_id == row["id"]
    before = sweep_runs.c.ended_before
    repetition = (runs.c.run_key == sweep_runs.c.run_key + RERUN_SUFFIX) & before.is_not(None)
    listed = sweep_runs.join(runs, (runs.c.run_key == sweep_runs.c.run_key) | repetition)
    since = runs.c.status.in_((*RESULT_STATUSES, "failed")) & (
        before.is_(None) | (runs.c.finished_at != before)
    )
    return (
        connection.execute(select(*columns).select_from(listed).where(mine & since))
        .mappings()
        .all()
    )


def _seconds_to_go(
    began: dt.datetime,
    now: dt.datetime,
    to_go: int,
    made: Sequence[RowMapping],
    live: Sequence[_Live],
) -> float | None:
    """Estimate the remaining time from the budget per second so far; runs that have not started
    count with the others' mean budget.
    """
    elapsed = _seconds(began, now)
    budgets = [run["budget"] for run in made] + [run.state.budget for run in live]
    spent = sum(
        _since(run["budget_spent"], run["wall_seconds"], _seconds(began, run["finished_at"]))
        for run in made
    )
    spent += sum(_since(run.state.budget_spent, run.wall, elapsed) for run in live)
    if spent <= 0 or elapsed <= 0:
        return None
    budget = to_go * sum(budgets) / len(budgets) + sum(
        max(0, run.state.budget - run.state.budget_spent) for run in live
    )
    return float(budget * elapsed / spent)


def _since(spent: int, wall: float | None, elapsed: float) -> float:
    """Return the share of a run's budget that was spent since a sweep's start; for a resumed run,
    in proportion to the time.
    """
    return spent * min(1.0, elapsed / wall) if wall else spent


def _failures(connection: Connection) -> Iterator[FailedRun]:
    newest = (
        select(runs)
        .where(runs.c.status == "failed")
        .order_by(runs.c.finished_at.desc(), runs.c.id.desc())
    )
    rows = connection.execute(newest.limit(LAST_FAILURES)).mappings().all()
    for row, label in zip(rows, labels([dict(row) for row in rows]), strict=True):
        yield FailedRun(row["id"], label, gist(row["error"] or ""))


def gist(error: str) -> str:
    """Return the line of an error that says what happened: the first line, or the last one of a
    traceback.
    """
    return last_line(error) if '  File "' in error else first_line(error)


def _process(owner: str | None) -> str | None:
    """Return the common beginning of the names of one process's writers."""
    return None if owner is None else owner.rpartition(":")[0]


def _seconds(start: dt.datetime, end: dt.datetime) -> float:
    return max(0.0, (end - start).total_seconds())
