"""The answer to "is this run stored?", from its row, its repetition and its owner.

All who ask get it here: commands and forecasts for a whole sweep (``Standing``), the queue right
before a run starts (``state_of``), and the recorder when it claims a run (``claim``).

A result stays in the database while it is repeated. Until the repetition is complete, its row has
the key of the run with ``RERUN_SUFFIX``; then it replaces the result (``take_place``).
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Engine, RowMapping, bindparam, delete, func, select, update

from dynabro_cli.core.errors import (
    AlreadyStoredError,
    EmptyDatabaseError,
    NotFoundError,
    RunHeldError,
)
from dynabro_cli.experiment.comparison import (
    CodeComparison,
    changed_components,
    compare,
    data_at_hand,
)
from dynabro_cli.runs.store.open.engine import open_read_only
from dynabro_cli.runs.store.open.servers import through_outages
from dynabro_cli.runs.store.open.translation import busy_seconds, shown, translated_errors
from dynabro_cli.runs.store.ownership import database_time, lease_seconds, presumed_dead, silence
from dynabro_cli.runs.store.read.searches import refuse_name_of_search
from dynabro_cli.runs.store.tables import RERUN_SUFFIX, RESULT_STATUSES, runs, sweeps
from dynabro_cli.runs.store.write.transactions import KeptConnection, transact

Row = Mapping[str, Any] | RowMapping
Repeat = Callable[[Row], bool]
"""Decide from a row of ``runs`` if the result or failure is made again."""
Rerun = Literal["none", "changed", "all"]
"""Results that a sweep makes again: none, results with a changed component or other data, or all
results.
"""
EndTimes = Mapping[str, dt.datetime | None]
"""Keys of runs, with the end time of the stored result or failure; None without one."""

_BY_KEY = select(runs).where(runs.c.run_key == bindparam("key"))


def never(row: Row) -> bool:
    """Make no run again."""
    return False


def always(row: Row) -> bool:
    """Make every run again."""
    return True


def changed(row: Row, data: Callable[[str], str | None] | None = None) -> bool:
    """Make a run again if a component or its data have changed; not if this is unknown, or if only
    the engine has changed.
    """
    return bool(changed_components(row["code_digests"], data))


@dataclass(frozen=True)
class UpTo:
    """Make the runs again whose id is at most ``last``; a repetition has a higher id. Clocks do not
    matter.

    Attributes:
        last: The highest id of a result or a failure at the start of the rerun.
        goes_on: True if an earlier command started the rerun and was interrupted.
    """

    last: int
    goes_on: bool = False

    def __call__(self, row: Row) -> bool:
        """Return True if the run existed at the start of the rerun."""
        return bool(row["id"] <= self.last)


class StoredState(NamedTuple):
    """State of a run in the database.

    Attributes:
        end: ``stored``: a result that is not made again. ``failed``: the run, or its repetition,
            has failed; the caller decides if failed runs are made again. None: the run is made.
        row: The row of that result or failure. If the run is made, the row that it resumes or
            replaces, if there is such a row.
        key: The key under which the run is stored if it is made.
    """

    end: Literal["stored", "failed"] | None
    row: Row | None
    key: str

    @property
    def result(self) -> Row | None:
        """The row of the result; None if the run has none, or is made again."""
        return self.row if self.end == "stored" else None

    @classmethod
    def of(cls, run_key: str, look_up: Callable[[str], Row | None], repeat: Repeat) -> StoredState:
        """Return the state of the run with a key, whose rows ``look_up`` returns by their keys."""
        row, key = look_up(run_key), run_key
        if row is not None and row["status"] in RESULT_STATUSES:
            if not repeat(row):
                return cls("stored", row, key)
            key += RERUN_SUFFIX
            row = look_up(key)
        failed = row is not None and row["status"] == "failed" and not repeat(row)
        return cls("failed" if failed else None, row, key)


def find(connection: Connection, run_key: str) -> RowMapping | None:
    """Return the row of the run with a key, or None."""
    return connection.execute(_BY_KEY, {"key": run_key}).mappings().first()


def state_of(engine: Engine | KeptConnection, run_key: str, repeat: Repeat = never) -> StoredState:
    """Return the state of a run now.

    Raises:
        RunHeldError: Another live process is making the run, or repeating it.
    """

    def look(connection: Connection) -> StoredState:
        state = StoredState.of(run_key, functools.partial(find, connection), repeat)
        if state.end is None and state.row is not None:
            refuse_if_live(connection, state.row)
        return state

    return transact(engine, look)


def claim(connection: Connection, run_key: str, *, repeat: Repeat, owner: str) -> StoredState:
    """Return the state of a run that ``owner`` makes now.

    Raises:
        AlreadyStoredError: The run has a result, and is not to be repeated.
        RunHeldError: Another live process is working on it.
    """
    state = StoredState.of(run_key, functools.partial(find, connection), repeat)
    if state.result is not None:
        row = state.result
        raise AlreadyStoredError(f"run {row['id']} is stored as {row['status']} already")
    # a row of this owner is the trace of a claim whose commit was not answered
    if state.row is not None and state.row["owner"] != owner:
        refuse_if_live(connection, state.row)
    return state


def refuse_if_live(connection: Connection, row: Row) -> None:
    """Raise RunHeldError if the run is in progress in a process that is or may be alive."""
    if row["status"] != "running":
        return
    now = database_time(connection)
    if presumed_dead(row, now):
        return
    heard = silence(row, now) or 0.0
    raise RunHeldError(
        f"run {row['id']} is in progress in process {row['pid']} on {row['host']}, last "
        f"heartbeat {heard:.0f} s ago; "
        "wait for it, or end it; a stopped or remote process is presumed dead after "
        f"{lease_seconds():g} s without a heartbeat"
    )


def take_place(connection: Connection, run_id: int | None) -> None:
    """Replace the result by its complete repetition."""
    key = connection.execute(select(runs.c.run_key).where(runs.c.id == run_id)).scalar_one()
    if key.endswith(RERUN_SUFFIX):
        original = key.removesuffix(RERUN_SUFFIX)
        connection.execute(delete(runs).where(runs.c.run_key == original))
        connection.execute(update(runs).where(runs.c.id == run_id).values(run_key=original))


def repeat_of(
    connection: Connection | None, sweep: str | None, rerun: Rerun, folder: Path | None = None
) -> Repeat:
    """Return which runs a sweep makes again, as the database is when the sweep starts.

    The next rerun of a sweep of this name continues an interrupted one. The start of the rerun is
    in its row in ``sweeps`` until each of its runs has been made.

    Args:
        connection: To the database; None if it does not exist yet.
        sweep: The sweep's name.
        rerun: The results to make again.
        folder: The folder of data sets; None for the usual one.
    """
    if rerun != "all":
        return (
            functools.partial(changed, data=data_at_hand(folder)) if rerun == "changed" else never
        )
    if connection is None:
        return UpTo(0)
    latest = (
        select(sweeps.c.rerun_after)
        .where(sweeps.c.name == sweep)
        .order_by(sweeps.c.id.desc())
        .limit(1)
    )
    unfinished = connection.execute(latest).scalar()
    if unfinished is not None:
        return UpTo(unfinished, goes_on=True)
    highest = connection.execute(
        select(func.max(runs.c.id)).where(runs.c.status.in_((*RESULT_STATUSES, "failed")))
    ).scalar()
    return UpTo(highest or 0)


class Standing:
    """State of a sweep's runs when the sweep starts.

    Args:
        connection: To the database; None if it does not exist yet.
        repeat: Which runs are made again.
        folder: The folder of data sets; None for the usual one.

    Attributes:
        repeat: The same.
    """

    def __init__(
        self, connection: Connection | None, repeat: Repeat = never, folder: Path | None = None
    ) -> None:
        self.repeat, self._folder = repeat, folder
        columns = select(
            runs.c.run_key, runs.c.id, runs.c.status, runs.c.finished_at, runs.c.code_digests
        )
        rows = [] if connection is None else connection.execute(columns).mappings().all()
        self._rows = {row["run_key"]: row for row in rows}

    @property
    def goes_on(self) -> bool:
        """True if an interrupted rerun is continued."""
        return isinstance(self.repeat, UpTo) and self.repeat.goes_on

    def has(self, run_key: str) -> bool:
        """Return True if there is a run with this key, whatever its status."""
        return run_key in self._rows

    def end_of(self, run_key: str) -> Literal["stored", "failed"] | None:
        """Return the status of a run that has ended and is not made again; None if it is made.

        The caller decides if a failed run is made again.
        """
        return StoredState.of(run_key, self._rows.get, self.repeat).end

    def stored(self, keys: Iterable[str]) -> frozenset[str]:
        """Return the keys whose run has a result that is not made again."""
        return frozenset(key for key in keys if self.end_of(key) == "stored")

    def to_make(self, keys: Iterable[str], *, retry_failed: bool) -> EndTimes:
        """Return the keys of the runs that are made, in the order of ``keys``.

        Each key has the end time of the stored result or failure, which distinguishes that one from
        the result of the sweep; None if there is neither.

        Args:
            keys: Keys of the sweep's runs.
            retry_failed: True if runs that are stored as failed are made again.
        """
        done = ("stored",) if retry_failed else ("stored", "failed")
        return {
            key: when for key, when in self.end_times(keys).items() if self.end_of(key) not in done
        }

    def end_times(self, keys: Iterable[str]) -> EndTimes:
        """Return the end time of each key's stored result or failure, in the form of
        ``to_make``.
        """
        return {key: self._ended(key) for key in dict.fromkeys(keys)}

    def _ended(self, run_key: str) -> dt.datetime | None:
        row = self._rows.get(run_key)
        return (
            row["finished_at"]
            if row is not None and row["status"] in (*RESULT_STATUSES, "failed")
            else None
        )

    def compare(self, keys: Iterable[str]) -> CodeComparison:
        """Compare the code and data of the runs that have a result with the current ones."""
        rows = (self._rows.get(key) for key in keys)
        texts = (
            (row["code_digests"], 1)
            for row in rows
            if row is not None and row["status"] in RESULT_STATUSES
        )
        return compare(texts, self._folder)


def read_standing(
    database: str, sweep: str | None, rerun: Rerun, folder: Path | None = None
) -> Standing:
    """Return the state of a sweep's runs, and which stored ones it would make again.

    Args:
        database: A path or URL; it need not exist.
        sweep: The sweep's name, or a shard's.
        rerun: The results to make again.
        folder: The folder of data sets; None for the usual one.

    Raises:
        SpecError: A search is stored under the sweep's name.
        DynabroError: The file is not a dynabro database, or cannot be read.
    """

    def read() -> Standing:
        try:
            engine = open_read_only(database)
        except (NotFoundError, EmptyDatabaseError):
            return Standing(None, repeat_of(None, sweep, rerun, folder), folder)
        with translated_errors(database), engine.connect() as connection:
            if sweep is not None:
                refuse_name_of_search(connection, sweep.partition(" ")[0])
            return Standing(connection, repeat_of(connection, sweep, rerun, folder), folder)

    return through_outages(shown(database), busy_seconds(), read)
