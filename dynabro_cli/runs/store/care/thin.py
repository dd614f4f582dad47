"""``dynabro db thin``: make a smaller copy of a database to give away: some rounds of each run, and
the histogram of all.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import Connection, Table, create_engine
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from dynabro_cli.core.errors import DatabaseError, NotFoundError, SpecError
from dynabro_cli.core.machine.failpoints import failpoint
from dynabro_cli.runs.store import ownership
from dynabro_cli.runs.store.care.check import damage
from dynabro_cli.runs.store.care.copies import copy_database, new_database
from dynabro_cli.runs.store.care.outputs import part_of
from dynabro_cli.runs.store.open.connections import connect_reader
from dynabro_cli.runs.store.open.engine import create_tables, open_read_only, snapshot
from dynabro_cli.runs.store.open.files import read_only_uri, sqlite_path
from dynabro_cli.runs.store.open.translation import shown, translated_errors
from dynabro_cli.runs.store.read.queries import list_runs
from dynabro_cli.runs.store.tables import (
    HAS_RESULT,
    byzantine_counts,
    diffs,
    environments,
    evaluations,
    rounds,
    runs,
    sweep_runs,
    sweeps,
    trials,
    verified_kappa,
    worker_labels,
)
from dynabro_cli.runs.store.write import row_digests

LARGEST_EVERY = 2**31 - 1
PAGE_BYTES = 32768
"""Bytes of a page of a copy of a large database. Rows of ``runs`` fill more of it than of a page of
the usual 4,096 bytes.
"""
LARGE = 1000 * PAGE_BYTES
"""Bytes of a large database. Each table and index takes a page at least, which would make a small
database larger.
"""
ANONYMOUS = {
    "runs": {
        **dict.fromkeys(ownership.NOBODY, "NULL"),
        "host": "''",
        "pid": "0",
        **dict.fromkeys(("git_commit", "git_diff", "tags", "note"), "NULL"),
    },
    "sweeps": {
        "owner": "''",
        "heartbeat_at": "started_at",
        "heartbeat_clock": "NULL",
        "host": "''",
        "pid": "0",
    },
}
"""Values of an anonymous copy for columns about people and machines."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Thinned:
    """Result of thinning.

    Attributes:
        runs: Number of runs in the copy.
        kept: Number of runs that keep their rows, because they were thinned before to a number that
            does not divide ``every``.
        left_out: Number of runs without a result, which are not copied.
        rows_before: Rows of ``rounds`` in the database.
        rows_after: Rows of ``rounds`` in the copy.
        size_before: Bytes of the database.
        size_after: Bytes of the copy.
    """

    runs: int
    kept: int
    left_out: int
    rows_before: int
    rows_after: int
    size_before: int
    size_after: int = 0


def thin(
    database: str,
    target: Path,
    every: int,
    *,
    where: str | None = None,
    points: str | None = None,
    anonymous: bool = False,
    force: bool = False,
    progress: Progress = lambda done, total: None,
) -> Thinned:
    """Copy the runs of an SQLite database that have a result, with the rounds whose number is a
    multiple of ``every``.

    Each run's first and last round are copied, too. ``byzantine_counts`` has the histogram of
    Byzantine workers over all rounds; ``identities`` and ``recovery`` do not change.
    ``worker_labels``, the largest table if there are hundreds of workers, gets no rows of thinned
    runs. A run that was thinned before is thinned further if ``every`` is a multiple of its
    ``rounds_every``; otherwise it keeps its rows. The copy has only dynabro's tables.

    Args:
        database: A path or URL; it is only read.
        target: The file to create.
        every: 1 keeps all rounds.
        where: An SQL condition on ``runs``; other runs keep their rounds.
        points: An SQL condition on ``runs``; other runs lose the models ``x`` of their evaluations.
        anonymous: Remove the maker and the machine of the runs.
        force: Replace an existing file, unless it is a database or a sweep.
        progress: Called with the number of runs copied and the number of all runs.

    Raises:
        SpecError: The database or ``target`` is on a server, ``every`` is less than 1, or ``where``
            or ``points`` is not valid.
        NotFoundError: There is no such file, or no run with a result in it.
        DatabaseError: The file is not a dynabro database, is damaged, or has another schema
            version.
        CannotWriteError: The target exists already, or cannot be created.
        StorageError: The disk is full.
    """
    path = _source(database, target, every)
    reader = open_read_only(database)
    for condition in filter(None, (where, points)):
        # a clear message if it is not a condition, or writes
        next(list_runs(reader, condition).rows, None)
    _refuse_damaged(database)
    output = new_database(target, database, force=force)
    folder = part_of(target)
    with output.errors():
        folder.mkdir(0o700)
    try:
        scratch = folder / "thin.db"
        with translated_errors(str(target)):
            _change(scratch, functools.partial(_create, large=path.stat().st_size >= LARGE))
        with (
            translated_errors(database),
            output.errors(),
            contextlib.closing(_open(path, scratch)) as connection,
        ):
            connection.execute("BEGIN")  # from here on, one snapshot is read
            thinned = _fill(connection, every, where, points, anonymous, progress)
            connection.execute("COMMIT")
        with translated_errors(str(target)):
            # the stored digests are of all rows; db check would call a copy with fewer rows changed
            _change(scratch, row_digests.store)
            copy_database(read_only_uri(scratch), output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return replace(thinned, size_after=target.stat().st_size)


def _source(database: str, target: Path, every: int) -> Path:
    """Return the file to thin."""
    if not 1 <= every <= LARGEST_EVERY:
        raise SpecError(
            f"every={every}: it must be 1 to {LARGEST_EVERY}. Try: --every 100, which keeps "
            "every 100th round"
        )
    path = sqlite_path(database)
    if path is None:
        name = shown(database)
        raise SpecError(
            f"{name} is a server's. Try: dynabro db merge '{name}' --db FILE, and thin that file"
        )
    if path.exists() and target.exists() and path.samefile(target):
        raise SpecError(f"{path} is to be thinned into itself. Try: another file")
    return path


def _refuse_damaged(database: str) -> None:
    """Refuse a database whose rows have changed: the new digests of a copy would say that its rows
    are sound.
    """
    with snapshot(database) as connection:
        damaged = damage(connection) or row_digests.digest_problems(connection)
    if damaged:
        name = shown(database)
        raise DatabaseError(
            f"{name}: rows are not as they were stored. Try: dynabro db check --db {name}, "
            "which lists them"
        )


def _create(connection: Connection, *, large: bool) -> None:
    if large:
        connection.exec_driver_sql(f"PRAGMA page_size = {PAGE_BYTES}")
    create_tables(connection)


def _change(path: Path, step: Callable[[Connection], None]) -> None:
    """Take a step in a transaction on the file to fill."""
    engine = create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool)
    with engine.begin() as connection:
        step(connection)
    engine.dispose()


def _open(path: Path, scratch: Path) -> sqlite3.Connection:
    """Open a connection that only reads a database, with the file to fill as ``thin``.

    The other way round, tables in a user's condition would be tables of the file to fill.
    """
    connection = connect_reader(read_only_uri(path))
    connection.isolation_level = None
    connection.execute("ATTACH ? AS thin", (scratch.resolve().as_uri(),))
    connection.execute("PRAGMA thin.journal_mode = OFF")  # an incomplete copy is thrown away
    connection.execute("PRAGMA thin.synchronous = OFF")
    return connection


def _fill(
    connection: sqlite3.Connection,
    every: int,
    where: str | None,
    points: str | None,
    anonymous: bool,
    progress: Progress,
) -> Thinned:
    """Copy runs and sweeps into ``thin``; arguments as in ``thin``."""
    runs_before, rows_before, size = (
        connection.execute(statement).fetchone()[0]
        for statement in (
            "SELECT COUNT(*) FROM runs",
            "SELECT COUNT(*) FROM rounds",
            "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
        )
    )
    fits = f":every % rounds_every {{}} 0 AND ({where or 'TRUE'})"
    plan = connection.execute(
        f"SELECT id, CASE WHEN {fits.format('=')} THEN :every ELSE rounds_every END, "
        f"{fits.format('<>')}, ({points or 'TRUE'}) FROM runs WHERE {HAS_RESULT} ORDER BY id",
        {"every": every},
    ).fetchall()
    if not plan:
        raise NotFoundError(
            f"none of its {runs_before} runs has a result; there is nothing to thin"
        )
    nobody = ANONYMOUS if anonymous else {}
    ended = "SELECT id FROM main.sweeps WHERE status <> 'running'"
    used = f"SELECT environment_id FROM main.runs WHERE {HAS_RESULT}"
    _copy(connection, environments, f"id IN ({used})")
    _copy(connection, runs, HAS_RESULT, instead=nobody.get("runs"))
    _copy(connection, sweeps, f"id IN ({ended})", instead=nobody.get("sweeps"))
    _copy(connection, sweep_runs, f"sweep_id IN ({ended})")
    # a sweep in progress is not copied, so that no trial may refer to it
    of_ended = {"sweep_id": f"CASE WHEN sweep_id IN ({ended}) THEN sweep_id END"}
    _copy(connection, trials, "TRUE", instead=of_ended)
    _copy(connection, verified_kappa, "TRUE")
    _copy(connection, diffs, "sha256 IN (SELECT git_diff FROM thin.runs)")
    rows = 0
    for done, (run, step, unfit, pointed) in enumerate(plan):
        progress(done, len(plan))
        rows += _copy_run(connection, run, step, pointed)
        if step == 1 or unfit:
            _copy(connection, worker_labels, "run_id = ?", (run,))
    progress(len(plan), len(plan))
    kept = sum(bool(unfit) for _, _, unfit, _ in plan)
    return Thinned(len(plan), kept, runs_before - len(plan), rows_before, rows, size)


def _copy_run(connection: sqlite3.Connection, run: int, every: int, points: bool) -> int:
    """Copy the rows of a run, with or without the models of its evaluations; return the number of
    rows of ``rounds``.
    """
    last = "(SELECT MAX(round) FROM main.rounds WHERE run_id = ?)"
    count = _copy(
        connection, rounds, f"run_id = ? AND (round % ? = 0 OR round = {last})", (run, every, run)
    )
    failpoint("mid-thin")
    if every > 1:
        histogram = (
            "SELECT run_id, byzantine, rounds FROM main.byzantine_histogram WHERE run_id = ?"
        )
        connection.execute(
            f"INSERT INTO thin.byzantine_counts (run_id, byzantine, rounds) {histogram}", (run,)
        )
        connection.execute("UPDATE thin.runs SET rounds_every = ? WHERE id = ?", (every, run))
    for table in row_digests.RUN_TABLES:
        if table not in (rounds, byzantine_counts, evaluations, worker_labels):
            _copy(connection, table, "run_id = ?", (run,))
    _copy(connection, evaluations, "run_id = ?", (run,), {} if points else {"x": "NULL"})
    return count


def _copy(
    connection: sqlite3.Connection,
    table: Table,
    condition: str,
    values: Sequence[int] = (),
    instead: Mapping[str, str] | None = None,
) -> int:
    """Copy the rows of a table that satisfy a condition, some columns with another value; return
    their number.
    """
    names = table.c.keys()
    chosen = ", ".join((instead or {}).get(name, name) for name in names)
    into = f"INSERT INTO thin.{table.name} ({', '.join(names)})"
    return connection.execute(
        f"{into} SELECT {chosen} FROM main.{table.name} WHERE {condition}", values
    ).rowcount
