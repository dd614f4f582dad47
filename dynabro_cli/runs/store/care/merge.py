"""``dynabro db merge``: copy the runs of another, possibly untrusted, database into this one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Boolean, Connection, Row, RowMapping, Table, delete, insert, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DataError, IntegrityError

from dynabro_cli.core.errors import DatabaseError, NotFoundError, SpecError, first_line
from dynabro_cli.core.machine.failpoints import failpoint
from dynabro_cli.experiment.comparison import versions
from dynabro_cli.runs.store.care.check import damage, unsound_others, unsound_runs
from dynabro_cli.runs.store.environments import VERSIONS, as_columns
from dynabro_cli.runs.store.open.engine import open_for_writing, snapshot
from dynabro_cli.runs.store.open.files import sqlite_path
from dynabro_cli.runs.store.open.schema import refuse_view_and_trigger_problems, schema_of
from dynabro_cli.runs.store.open.translation import shown, translated_errors
from dynabro_cli.runs.store.open.value_types import moment, sane_row_sql, unsound_rows
from dynabro_cli.runs.store.ownership import NOBODY, database_time, presumed_dead
from dynabro_cli.runs.store.read.rows import json_object
from dynabro_cli.runs.store.tables import (
    RERUN_SUFFIX,
    RESULT_STATUSES,
    TIMES,
    runs,
    sweeps,
    verified_kappa,
)
from dynabro_cli.runs.store.tables import trials as trials_table
from dynabro_cli.runs.store.write import kappas, trials
from dynabro_cli.runs.store.write.origin import copy_diff
from dynabro_cli.runs.store.write.row_digests import RUN_TABLES
from dynabro_cli.runs.store.write.side_files import SideFiles

BATCH_ROWS = 10_000
CAPABILITY = "cpu_capability"
"""Vector instructions of an environment, which may be why results differ."""
COMPARED = ("status", "rounds", "budget_spent", "final_accuracy", "final_loss", "final_gap")

Action = Literal["copied", "replaced", "here", "held", "left"]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Difference:
    """A run with a result in both databases, if the results differ; ``cpu_capability`` is None for
    a run that was stored without it.
    """

    run_key: str
    here: dict[str, Any]
    there: dict[str, Any]


@dataclass
class Merged:
    """Result of a merge.

    Attributes:
        copied: Keys of runs that are new here.
        replaced: Keys of runs that replaced a run without a result.
        here: Number of results that are here already.
        different: Those results that differ.
        held: Keys of runs that are in progress here in a live process.
        left: Number of runs without a result that were not merged: something of them is here, or
            they are repetitions.
        unsound: Problems of runs that were not merged, by the other database's id.
        kappas: Number of findings of ``verified_kappa`` that are new here.
        trials: Number of trials of searches that are new here.
        other_searches: Searches whose trials were not merged, because another search of the name is
            here.
        unsound_kappas: As ``unsound``, for these findings.
        unsound_rows: Problems of trials and of searches' commands that were not merged, one per
            line.
        versions: Number of versions of a task's data among the runs of both databases, by task, if
            there are several.
    """

    copied: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    here: int = 0
    different: list[Difference] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    left: int = 0
    unsound: dict[int, list[str]] = field(default_factory=dict)
    kappas: int = 0
    trials: int = 0
    other_searches: list[str] = field(default_factory=list)
    unsound_kappas: dict[int, list[str]] = field(default_factory=dict)
    unsound_rows: list[str] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)


def merge(
    other: str,
    database: str,
    *,
    dry_run: bool = False,
    progress: Progress = lambda done, total: None,
) -> Merged:
    """Copy the runs of ``other``, with all their rows, into ``database``, one transaction per run.

    A result is copied unless this database has one. It replaces a run without a result, unless a
    live process is making that run. A run without a result is copied, as interrupted or failed, if
    this database does not have the run. Nothing in ``other`` is trusted: a run counts only if its
    values fit their columns' types, its key is the key of its spec, and its rows agree, as
    ``dynabro db check`` defines it.

    Args:
        other: A path or URL; it is only read.
        database: A path or URL; it is created if it is missing.
        dry_run: Return what would be done, and write nothing.
        progress: Called with the number of runs done and the number of all runs.

    Raises:
        SpecError: Both databases are the same.
        NotFoundError: ``other`` does not exist.
        DatabaseError: One of them is not a dynabro database, is damaged, or has another schema
            version.
        CannotWriteError, BusyError, StorageError: ``database`` cannot be written.
    """
    path = sqlite_path(other)
    if path is not None and not path.exists():
        raise NotFoundError(f"there is no database {path}. Try: another database")
    if _same(other, database):
        raise SpecError(f"{shown(other)} is to be merged into itself. Try: another --db")
    with snapshot(other) as reading:
        if damage(reading):
            raise DatabaseError(
                f"{shown(other)} is damaged. Try: dynabro db check --db {shown(other)}"
            )
        merged = Merged(
            unsound=unsound_runs(reading),
            unsound_rows=unsound_others(reading, (sweeps, trials_table)),
        )
        merged.unsound_kappas = {
            key[0]: [problem] for key, problem in unsound_rows(reading, verified_kappa).items()
        }
        sound = [row for row in _outline(reading) if row["id"] not in merged.unsound]
        if dry_run:
            _rehearse(reading, sound, database, merged, progress)
        else:
            _Merger(reading, other, database, merged).merge(sound, progress)
    return merged


class _RefusedError(Exception):
    """The tables here refuse a row of the other database, whose own tables may lack keys and
    checks.
    """


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn the refusal of a row, within the context, into _RefusedError, because the row and not
    this database is at fault.
    """
    try:
        yield
    except (IntegrityError, DataError, UnicodeError) as error:
        raise _RefusedError(first_line(getattr(error, "orig", error))) from error


class _Merger:
    """Copies runs from a connection into a database."""

    def __init__(self, reading: Connection, other: str, database: str, merged: Merged) -> None:
        self._reading, self._other, self._database, self._merged = reading, other, database, merged
        self._engine = open_for_writing(database)
        self._files = SideFiles.of(self._engine.url)

    def merge(self, there: list[RowMapping], progress: Progress) -> None:
        theirs = trials.sound_trials(self._reading)
        with translated_errors(self._database), self._engine.connect() as connection:
            here = _by_key(connection)
        # reads the texts of searches, which takes time, before the database is held
        with snapshot(self._database) as connection:
            trials.new_trials(theirs, self._reading, connection)
        self._merged.versions = _versions(there, here)
        for done, row in enumerate(there):
            progress(done, len(there))
            present = here.get(row["run_key"])
            action = _decide(row, present, None)
            try:
                if action in ("copied", "replaced"):
                    action, present = self._copy(row)
            except _RefusedError as error:
                self._merged.unsound[row["id"]] = [f"it cannot be stored ({error})"]
                continue
            _note(self._merged, action, row, present)
        try:
            with translated_errors(self._database), self._engine.begin() as connection, _refusals():
                self._merged.kappas = kappas.copy(self._reading, connection)
                self._merged.trials, self._merged.other_searches = trials.copy(
                    theirs, self._reading, connection
                )
        except _RefusedError as error:
            # both were in one transaction, which is rolled back: nothing that was counted is stored
            self._merged.kappas = self._merged.trials = 0
            self._merged.unsound_rows.append(
                f"searches and findings: they cannot be stored ({error})"
            )
        progress(len(there), len(there))
        self._engine.dispose()

    def _copy(self, outline: RowMapping) -> tuple[Action, RowMapping | None]:
        """Copy one run in one transaction; return the action, and the row that was here before."""
        key = outline["run_key"]
        with translated_errors(self._database), self._engine.begin() as connection, _refusals():
            present = (
                connection.execute(select(runs).where(runs.c.run_key == key)).mappings().first()
            )
            action = _decide(outline, present, connection)
            if action not in ("copied", "replaced"):
                return action, present
            if present is not None:
                connection.execute(delete(runs).where(runs.c.id == present["id"]))
            row = self._run(outline["id"])
            copy_diff(self._reading, connection, row["git_diff"])
            columns = as_columns(connection, row)
            run_id = connection.execute(
                insert(runs).values(columns).returning(runs.c.id)
            ).scalar_one()
            for table in RUN_TABLES:
                for batch in self._rows(table, outline["id"], run_id):
                    _store(connection, table, batch)
                failpoint("mid-merge")
        failpoint("after-merge")
        if action == "replaced":
            self._files.remove(self._files.names(key))
        return action, present

    def _run(self, number: int) -> dict[str, Any]:
        """Return a run's values as they are stored here: without an owner and without a checkpoint,
        but with its versions.
        """
        names = ", ".join(name for name in runs.c.keys() if name not in ("id", "environment_id"))  # noqa: SIM118
        statement = text(f"SELECT {names}, {VERSIONS} FROM runs WHERE id = :number")
        with translated_errors(self._other):
            row = dict(self._reading.execute(statement, {"number": number}).mappings().one())
        for name in TIMES:
            row[name] = moment(row[name])
        status = "interrupted" if row["status"] == "running" else row["status"]
        return row | {"status": status, "checkpoint": None, **NOBODY}

    def _rows(self, table: Table, number: int, run_id: int) -> Iterator[Sequence[Row[Any]]]:
        """Yield a run's rows of a table in batches, with ``run_id`` as their run."""
        names = ", ".join(table.c.keys()[1:])
        statement = text(
            f"SELECT {run_id} AS run_id, {names} FROM {table.name} WHERE run_id = :number"
        )
        with translated_errors(self._other):
            yield from self._reading.execute(
                statement.execution_options(yield_per=BATCH_ROWS), {"number": number}
            ).partitions()


def _store(connection: Connection, table: Table, rows: Sequence[Row[Any]]) -> None:
    """Insert rows directly: SQLAlchemy's processing of each value would take as long as everything
    else.
    """
    values: list[Any] = [tuple(row) for row in rows]
    places = [isinstance(column.type, Boolean) for column in table.c]
    # only SQLite stores booleans as 0 and 1
    if any(places) and connection.dialect.name != "sqlite":
        values = [tuple(map(_truth, row, places)) for row in values]
    mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    names = ", ".join(table.c.keys())
    connection.exec_driver_sql(
        f"INSERT INTO {table.name} ({names}) VALUES ({', '.join([mark] * len(table.c))})", values
    )


def _truth(value: Any, is_truth: bool) -> Any:
    return bool(value) if is_truth and value is not None else value


def _rehearse(
    reading: Connection, there: list[RowMapping], database: str, merged: Merged, progress: Progress
) -> None:
    """Note what a merge would do with the database as it is now."""
    path, theirs = sqlite_path(database), trials.sound_trials(reading)
    if path is not None and (not path.exists() or not path.stat().st_size):
        for row in there:
            _note(merged, _decide(row, None, None), row, None)
        merged.kappas, merged.trials = (
            len(kappas.new_findings(reading, None)),
            len(theirs),
        )
        return
    with snapshot(database) as connection:
        refuse_view_and_trigger_problems(schema_of(connection), database, writing=True)
        merged.kappas = len(kappas.new_findings(reading, connection))
        fresh, merged.other_searches = trials.new_trials(theirs, reading, connection)
        merged.trials = len(fresh)
        here = _by_key(connection)
        merged.versions = _versions(there, here)
        for done, row in enumerate(there):
            progress(done, len(there))
            present = here.get(row["run_key"])
            _note(merged, _decide(row, present, connection), row, present)


def _outline(connection: Connection) -> list[RowMapping]:
    """Return the runs of the other database, in order."""
    names, sane = (
        ", ".join(("id", "run_key", "code_digests", *COMPARED, VERSIONS)),
        sane_row_sql(connection.dialect.name),
    )
    return list(
        connection.execute(text(f"SELECT {names} FROM runs WHERE {sane} ORDER BY id")).mappings()
    )


def _by_key(connection: Connection) -> dict[str, RowMapping]:
    columns = ("id", "run_key", "code_digests", *NOBODY, *COMPARED)
    return {
        row["run_key"]: row
        for row in connection.execute(
            select(*(runs.c[name] for name in columns), text(VERSIONS))
        ).mappings()
    }


def _versions(there: list[RowMapping], here: dict[str, RowMapping]) -> dict[str, int]:
    return versions(
        row["code_digests"] for row in (*there, *here.values()) if row["status"] in RESULT_STATUSES
    )


def _decide(there: RowMapping, here: RowMapping | None, connection: Connection | None) -> Action:
    """Decide what to do with a run of the other database.

    Args:
        there: Its row.
        here: Its row here, or None.
        connection: To the database here, whose clock decides which writers are alive; None if no
            writer counts as alive.
    """
    if there["run_key"].endswith(RERUN_SUFFIX):
        return "left"
    if here is None:
        return "copied"
    if there["status"] not in RESULT_STATUSES:
        return "left"
    if here["status"] in RESULT_STATUSES:
        return "here"
    live = (
        connection is not None
        and here["status"] == "running"
        and not presumed_dead(here, database_time(connection))
    )
    return "held" if live else "replaced"


def _note(merged: Merged, action: Action, there: RowMapping, here: RowMapping | None) -> None:
    key = there["run_key"]
    if action == "copied":
        merged.copied.append(key)
    elif action == "replaced":
        merged.replaced.append(key)
    elif action == "held":
        merged.held.append(key)
    elif action == "left":
        merged.left += 1
    else:
        merged.here += 1
        ours, theirs = (
            {name: None if row is None else row[name] for name in COMPARED} for row in (here, there)
        )
        if ours != theirs:
            for row, values in ((here, ours), (there, theirs)):
                versions_there = json_object(None if row is None else row.get("versions"))
                values[CAPABILITY] = (versions_there or {}).get(CAPABILITY)
            merged.different.append(Difference(key, ours, theirs))


def _same(other: str, database: str) -> bool:
    """Return True if two names are of the same database."""
    paths = sqlite_path(other), sqlite_path(database)
    if paths[0] is not None and paths[1] is not None:
        return paths[0].exists() and paths[1].exists() and paths[0].samefile(paths[1])
    if paths[0] is not None or paths[1] is not None:
        return False
    first, second = (make_url(name).set(username=None, password=None) for name in (other, database))
    return first.set(drivername=first.get_backend_name()) == second.set(
        drivername=second.get_backend_name()
    )
