"""``dynabro db check``: check that a database is intact and that its rows agree."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, select, text

from dynabro_cli.store import kappas
from dynabro_cli.store.engine import schema_of
from dynabro_cli.store.ownership import database_time, presumed_dead
from dynabro_cli.store.schema import NEW_ONE, strangers, unreadable, way_on
from dynabro_cli.store.server_schema import server_strangers
from dynabro_cli.store.side_files import SideFiles
from dynabro_cli.store.snapshot import snapshot
from dynabro_cli.store.soundness import CONTROL, unsound_runs
from dynabro_cli.store.tables import runs
from dynabro_cli.store.translation import shown

MOST_DAMAGES = 100
"""Most lines of damage that SQLite itself lists."""


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
    """Read a whole database as it is now, and return what is wrong in it.

    Raises:
        NotFoundError: There is no such file.
        DatabaseError: The file is not a dynabro database, has another schema version, or is too damaged to be read.
    """
    with snapshot(database, any_tables=True) as connection:
        problems, readable = _strangers(connection, shown(database))
        damages = damage(connection) if readable else problems
        if damages:  # nothing in a damaged file is reliable
            return Report({}, 0, 0, damages, [])
        problems += _orphans(connection)
        for number, found in sorted(unsound_runs(connection).items(), key=lambda item: str(item[0])):
            problems += [f"run {_plain(str(number))}: {problem}" for problem in found]
        for number, found in sorted(kappas.unsound(connection).items()):
            problems += [f"kappa {_plain(str(number))}: {problem}" for problem in found]
        statuses = connection.execute(text("SELECT status, COUNT(*) FROM runs GROUP BY status ORDER BY status"))
        return Report(
            statuses={_plain(str(status)): count for status, count in statuses},
            rounds=connection.execute(text("SELECT COUNT(*) FROM rounds")).scalar_one(),
            evaluations=connection.execute(text("SELECT COUNT(*) FROM evaluations")).scalar_one(),
            problems=problems,
            notes=[] if problems else _notes(connection, SideFiles.of(database)),
        )


def _strangers(connection: Connection, database: str) -> tuple[list[str], bool]:
    """Return the differences of the schema from dynabro's, one per line, and True if all of dynabro's tables can be read."""
    if connection.dialect.name != "sqlite":
        return [_plain(f"{one}. Try: {NEW_ONE.format(database)}") for one in server_strangers(connection)], True
    found = schema_of(connection)
    problems = [_plain(f"{one}. Try: {way_on(found, database)}") for one in strangers(found)]
    return problems, unreadable(found) is None


def damage(connection: Connection) -> list[str]:
    """Return the damage that SQLite itself finds, one per line; for a server's database, an empty list."""
    if connection.dialect.name != "sqlite":
        return []
    found = connection.exec_driver_sql(f"PRAGMA integrity_check({MOST_DAMAGES})").scalars().all()
    return [] if found == ["ok"] else [_plain(" ".join(str(line).split())) for line in found]


def _orphans(connection: Connection) -> list[str]:
    """Return rows that belong to no run or sweep, one line per table; a server prevents such rows."""
    if connection.dialect.name != "sqlite":
        return []
    lost = 'SELECT "table", "parent", COUNT(*) FROM pragma_foreign_key_check GROUP BY "table", "parent"'
    found = [[_plain(str(value)) for value in row] for row in connection.exec_driver_sql(lost)]
    return [
        f"{count} rows of {table} have no {one}; delete the rows whose {one}_id is not in (SELECT id FROM {one}s)"
        for table, one, count in ((table, parent.removesuffix("s"), count) for table, parent, count in found)
    ]


def _notes(connection: Connection, files: SideFiles) -> list[str]:
    """Notes that are not errors: resumable runs, and unused checkpoint files."""
    notes = []
    now = database_time(connection)
    live: list[str] = []
    columns = ("id", "run_key", "status", "owner", "heartbeat_at", "heartbeat_clock", "checkpoint")
    waiting = select(*(runs.c[name] for name in columns))
    rows: list[RowMapping] = list(
        connection.execute(waiting.where((runs.c.status == "running") | runs.c.checkpoint.is_not(None)).order_by(runs.c.id))
        .mappings()
        .all()
    )
    for row in rows:
        dead = row["status"] != "running" or presumed_dead(row, now)
        if not dead:
            live.append(row["run_key"])
        elif row["status"] == "running":
            notes.append(f"run {row['id']} is in progress in a process that is presumed dead; the same command resumes it")
        if dead and row["checkpoint"] is not None and files.load(row["checkpoint"]) is None:
            notes.append(
                f"run {row['id']}: its checkpoint is missing or damaged; the same command starts it from the beginning"
            )
    named = {row["checkpoint"] for row in rows}
    notes += _unneeded(files, named, tuple(f"{key}." for key in live))
    return notes


def _unneeded(files: SideFiles, named: set[str], live: tuple[str, ...]) -> list[str]:
    """Return the checkpoint files that no run resumes from."""
    paths = [path for path in files.checkpoints() if path.name not in named and not path.name.startswith(live)]
    if not paths:
        return []
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return [f"{len(paths)} checkpoint files ({total} bytes) in {paths[0].parent} are not used by any run; they can be removed"]


def _plain(line: str) -> str:
    """Return a line that is safe to print, whatever the database contains."""
    return CONTROL.sub("?", line).replace("\n", " ")
