"""``dynabro db remove``: remove runs with all their rows from a database."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, delete, literal_column, select

from dynabro_cli.core.errors import BusyError, RunHeldError, StorageError
from dynabro_cli.core.machine.failpoints import failpoint
from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only
from dynabro_cli.runs.store.open.translation import shown, translated_errors
from dynabro_cli.runs.store.open.value_types import moment
from dynabro_cli.runs.store.read.queries import query
from dynabro_cli.runs.store.tables import RERUN_SUFFIX, runs
from dynabro_cli.runs.store.write.origin import remove_unused_diffs
from dynabro_cli.runs.store.write.side_files import SideFiles
from dynabro_cli.runs.store.write.standing import refuse_if_live

BATCH = 500
"""Number of runs in one statement."""
KEY = re.compile(r"[0-9a-f]{64}")
"""A key of dynabro; only such keys are names of files."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Doomed:
    """A run that is to be removed, as it was at the decision."""

    id: int
    run_key: Any
    status: Any


@dataclass(frozen=True)
class Removal:
    """Runs and files to remove.

    Attributes:
        runs: The runs, by id. The unfinished repetition of a run is removed with it.
        files: Their checkpoints and logs.
    """

    runs: tuple[Doomed, ...]
    files: tuple[Path, ...]

    @property
    def statuses(self) -> dict[str, int]:
        """Number of runs by status."""
        return dict(sorted(Counter(str(run.status) for run in self.runs).items()))


def choose(database: str, where: str) -> Removal:
    """Return what there is to remove; write nothing.

    The values of a run are not checked, so that a damaged run can be removed.

    Args:
        database: A path or URL.
        where: An SQL condition on ``runs``.

    Raises:
        SpecError: The condition is not valid, or does more than read.
        NotFoundError: There is no such database.
        RunHeldError: A live process is making one of the runs.
        DatabaseError: The file is not a dynabro database, or is damaged.
    """
    engine = open_read_only(database)
    ids = [row[0] for row in query(engine, f"SELECT id FROM runs WHERE ({where}) ORDER BY id").rows]
    with translated_errors(database), engine.connect() as connection:
        rows = [row for batch in _batches(ids) for row in _rows(connection, runs.c.id.in_(batch))]
        again = [f"{row['run_key']}{RERUN_SUFFIX}" for row in rows]
        rows += [
            row for batch in _batches(again) for row in _rows(connection, runs.c.run_key.in_(batch))
        ]
        doomed = {row["id"]: Doomed(row["id"], row["run_key"], row["status"]) for row in rows}
        for row in rows:
            _refuse_if_live(connection, row)
        removed = tuple(doomed[number] for number in sorted(doomed))
        return Removal(removed, tuple(_files(connection, SideFiles.of(engine.url), removed)))


def remove(database: str, removal: Removal) -> list[Path]:
    """Remove runs in one transaction, and then their files; return the files that could not be
    removed.

    Args:
        database: A path or URL.
        removal: The result of ``choose``.

    Raises:
        BusyError: A run has changed, or a live process is making it; nothing is removed.
        StorageError: The disk is full; nothing is removed.
        DynabroError: The database cannot be written; nothing is removed.
    """
    try:
        engine = open_for_writing(database)
        with translated_errors(database), engine.begin() as connection:
            for batch in _batches(removal.runs):
                _remove(connection, batch)
                failpoint("mid-remove")
    except StorageError as error:  # SQLite logs the pages that it changes
        raise StorageError(
            f"nothing is removed, because that needs room for a log, too ({error}). Try: "
            "dynabro db thin FILE --every 10 "
            f"--db {shown(database)}, with FILE on another disk"
        ) from error
    engine.dispose()
    failpoint("after-remove")
    return [path for path in removal.files if not _unlink(path)]


def _remove(connection: Connection, batch: Sequence[Doomed]) -> None:
    """Delete the rows of runs that have not changed."""
    ids = [run.id for run in batch]
    present = {row["id"]: row for row in _rows(connection, runs.c.id.in_(ids))}
    for run in batch:
        row = present.get(run.id, {})
        if (row.get("run_key"), row.get("status")) != (run.run_key, run.status):
            raise BusyError(f"run {run.id} has changed; nothing is removed. Try: the same command")
        _refuse_if_live(connection, row)
    # ON DELETE CASCADE removes their rows in other tables
    connection.execute(delete(runs).where(runs.c.id.in_(ids)))
    remove_unused_diffs(connection)


def _rows(connection: Connection, condition: ColumnElement[bool]) -> list[dict[str, Any]]:
    """Return the ownership columns of runs; of a damaged row as much as can be read."""
    columns = (
        runs.c.id,
        runs.c.run_key,
        runs.c.status,
        runs.c.owner,
        runs.c.heartbeat_clock,
        runs.c.host,
        runs.c.pid,
    )
    raw: ColumnElement[Any] = literal_column("heartbeat_at").label("heartbeat_at")
    rows = [
        dict(row) for row in connection.execute(select(*columns, raw).where(condition)).mappings()
    ]
    return [
        row | {"owner": str(row["owner"] or ""), "heartbeat_at": moment(row["heartbeat_at"])}
        for row in rows
    ]


def _refuse_if_live(connection: Connection, row: dict[str, Any]) -> None:
    try:
        refuse_if_live(connection, row)
    except RunHeldError as error:
        raise RunHeldError(f"{error}; nothing is removed") from None


def _files(connection: Connection, files: SideFiles, removed: Sequence[Doomed]) -> Iterator[Path]:
    """Return the checkpoints of runs, and the logs of runs that are removed completely."""
    keys = {str(run.run_key) for run in removed}
    named = {key for key in keys if KEY.fullmatch(key.removesuffix(RERUN_SUFFIX))}
    yield from (path for path in files.checkpoints() if path.name.partition(".")[0] in named)
    unfinished = [key.removesuffix(RERUN_SUFFIX) for key in named if key.endswith(RERUN_SUFFIX)]
    kept = {
        row["run_key"]
        for batch in _batches(unfinished)
        for row in _rows(connection, runs.c.run_key.in_(batch))
    } - keys
    logs = {files.log(key) for key in {key.removesuffix(RERUN_SUFFIX) for key in named} - kept}
    yield from (path for path in sorted(logs) if path.is_file())


def _unlink(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))
