"""``dynabro db check``: check that a database is intact and that its rows agree."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, Table, select, text

from dynabro_cli.core.limits import CONTROL
from dynabro_cli.runs.store.environments import VERSIONS
from dynabro_cli.runs.store.open.engine import snapshot
from dynabro_cli.runs.store.open.schema import schema_of, view_and_trigger_problems
from dynabro_cli.runs.store.open.value_types import (
    sane_row_sql,
    type_problem,
    unsound_rows,
    wrong_types_sql,
)
from dynabro_cli.runs.store.ownership import database_time, presumed_dead
from dynabro_cli.runs.store.read.rows import json_object, row_problems
from dynabro_cli.runs.store.tables import environments, runs, sweep_runs, sweeps, verified_kappa
from dynabro_cli.runs.store.tables import trials as trials_table
from dynabro_cli.runs.store.write import row_digests, trials
from dynabro_cli.runs.store.write.origin import broken_diffs
from dynabro_cli.runs.store.write.side_files import SideFiles

MOST_DAMAGES = 100
"""Most lines of damage that SQLite itself lists."""
ROW_NAMES = {
    verified_kappa: "kappa",
    sweeps: "sweep",
    trials_table: "trial",
    sweep_runs: "listed run",
    environments: "environment",
}
"""Tables whose rows are not rows of a run, and the name of a row."""


@dataclass(frozen=True)
class Report:
    """Result of a check.

    Attributes:
        statuses: Number of runs by status.
        rounds: Rows of ``rounds``.
        evaluations: Rows of ``evaluations``.
        problems: Errors, one per line.
        notes: Notes that are not errors, one per line.
    """

    statuses: dict[str, int]
    rounds: int
    evaluations: int
    problems: list[str]
    notes: list[str]


def check(database: str) -> Report:
    """Read a whole database, at one moment, and return its problems.

    Raises:
        NotFoundError: There is no such file.
        DatabaseError: The file is not a dynabro database, has another schema version, or is too
            damaged to be read.
    """
    with snapshot(database) as connection:
        damages = damage(connection)
        problems = [_printable(line) for line in view_and_trigger_problems(schema_of(connection))]
        if damages:  # nothing in a damaged file is reliable
            return Report({}, 0, 0, damages, [])
        problems += _orphans(connection)
        for number, of_run in sorted(
            unsound_runs(connection).items(), key=lambda item: str(item[0])
        ):
            problems += [f"run {_printable(str(number))}: {problem}" for problem in of_run]
        problems += unsound_others(connection)
        statuses = connection.execute(
            text("SELECT status, COUNT(*) FROM runs GROUP BY status ORDER BY status")
        )
        return Report(
            statuses={_printable(str(status)): count for status, count in statuses},
            rounds=connection.execute(text("SELECT COUNT(*) FROM rounds")).scalar_one(),
            evaluations=connection.execute(text("SELECT COUNT(*) FROM evaluations")).scalar_one(),
            problems=problems,
            notes=[] if problems else _notes(connection, SideFiles.of(database)),
        )


def unsound_others(connection: Connection, tables: Iterable[Table] = ROW_NAMES) -> list[str]:
    """Return the problems of the rows of some tables whose rows are not rows of runs, one per
    line.
    """
    return [
        _printable(f"{ROW_NAMES[table]} {' of '.join(map(str, reversed(key)))}: {problem}")
        for table in tables
        for key, problem in (
            trials.unsound(connection) if table is trials_table else unsound_rows(connection, table)
        ).items()
    ]


def damage(connection: Connection) -> list[str]:
    """Return the damage that SQLite itself finds, one per line; for a server's database, an empty
    list.
    """
    if connection.dialect.name != "sqlite":
        return []
    lines = connection.exec_driver_sql(f"PRAGMA integrity_check({MOST_DAMAGES})").scalars().all()
    return [] if lines == ["ok"] else [_printable(" ".join(str(line).split())) for line in lines]


def _orphans(connection: Connection) -> list[str]:
    """Return rows that belong to no run or sweep, one line per table; a server prevents such
    rows.
    """
    if connection.dialect.name != "sqlite":
        return []
    lost = (
        'SELECT "table", "parent", COUNT(*) FROM pragma_foreign_key_check GROUP BY "table", '
        '"parent"'
    )
    rows = [[_printable(str(value)) for value in row] for row in connection.exec_driver_sql(lost)]
    return [
        f"{count} rows of {table} have no {missing}; delete the rows whose {missing}_id is not in "
        f"(SELECT id FROM {missing}s)"
        for table, missing, count in (
            (table, parent.removesuffix("s"), count) for table, parent, count in rows
        )
    ]


def _notes(connection: Connection, files: SideFiles) -> list[str]:
    """Notes that are not errors: resumable runs, and unused checkpoint files."""
    notes = []
    now = database_time(connection)
    live: list[str] = []
    columns = ("id", "run_key", "status", "owner", "heartbeat_at", "heartbeat_clock", "checkpoint")
    waiting = select(*(runs.c[name] for name in columns))
    rows: list[RowMapping] = list(
        connection.execute(
            waiting.where((runs.c.status == "running") | runs.c.checkpoint.is_not(None)).order_by(
                runs.c.id
            )
        )
        .mappings()
        .all()
    )
    for row in rows:
        dead = row["status"] != "running" or presumed_dead(row, now)
        if not dead:
            live.append(row["run_key"])
        elif row["status"] == "running":
            notes.append(
                f"run {row['id']} is in progress in a process that is presumed dead; the same "
                "command resumes it"
            )
        if dead and row["checkpoint"] is not None and files.load(row["checkpoint"]) is None:
            notes.append(
                f"run {row['id']}: its checkpoint is missing or damaged; the same command "
                "starts it from the beginning"
            )
    named = {row["checkpoint"] for row in rows}
    notes += _unneeded(files, named, tuple(f"{key}." for key in live))
    return notes


def _unneeded(files: SideFiles, named: set[str], live: tuple[str, ...]) -> list[str]:
    """Return the checkpoint files that no run resumes from."""
    paths = [
        path
        for path in files.checkpoints()
        if path.name not in named and not path.name.startswith(live)
    ]
    if not paths:
        return []
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return [
        (
            f"{len(paths)} checkpoint files ({total} bytes) in {paths[0].parent} are not used by "
            "any run; they can be removed"
        )
    ]


def _printable(line: str) -> str:
    """Return a line without control characters, which a database may contain."""
    return CONTROL.sub("?", line).replace("\n", " ")


def unsound_runs(connection: Connection) -> dict[int, list[str]]:
    """Return the problems of each damaged run by its id; no problem quotes the database.

    Args:
        connection: A connection with one snapshot.
    """
    problems_of: defaultdict[int, list[str]] = defaultdict(list)
    for table, run_id in ((runs, "id"), *((table, "run_id") for table in row_digests.RUN_TABLES)):
        for number, column in connection.execute(
            text(wrong_types_sql(table, run_id, connection.dialect.name))
        ):
            if isinstance(number, int):  # a row without a run is reported elsewhere
                problems_of[number].append(type_problem(table, column))
    names = ", ".join([*runs.c.keys(), VERSIONS])
    sane = text(f"SELECT {names} FROM runs WHERE {sane_row_sql(connection.dialect.name)}")
    for run in connection.execute(sane).mappings():
        problems = row_problems(dict(run))
        if json_object(run["versions"]) is None:
            problems.append(
                "the versions of its environment are missing, or are not valid JSON of a run"
            )
        if problems:
            problems_of[run["id"]] += problems
    for number, problem in (
        row_digests.digest_problems(connection) | broken_diffs(connection)
    ).items():
        if number not in problems_of:
            problems_of[number].append(problem)
    return dict(problems_of)
