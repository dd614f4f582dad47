"""Choose which stored results a sweep makes again: none, all, of other code or data, or the rest of
an interrupted rerun.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, RowMapping, func, select

from dynabro_cli.components.digests import CodeComparison, changed_components, compare, data_at_hand
from dynabro_cli.errors import EmptyDatabaseError, NotFoundError
from dynabro_cli.store.claims import ENDED, RERUN_SUFFIX, Repeat
from dynabro_cli.store.open.engine import open_read_only
from dynabro_cli.store.open.servers import through_outages
from dynabro_cli.store.open.translation import busy_seconds, shown, translated_errors
from dynabro_cli.store.read.searches import refuse_name_of_search
from dynabro_cli.store.tables import runs, sweeps

ToMake = Mapping[str, dt.datetime | None]
"""Keys of runs, with the end time of the stored result or failure."""
Rerun = Literal["none", "changed", "all"]
"""Results that a sweep makes again: none, results with a changed component or other data, or all
results.
"""


def never(row: Mapping[str, Any] | RowMapping) -> bool:
    """Make no run again."""
    return False


def changed(
    row: Mapping[str, Any] | RowMapping, data: Callable[[str], str | None] | None = None
) -> bool:
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

    def __call__(self, row: Mapping[str, Any] | RowMapping) -> bool:
        """Return True if the run existed at the start of the rerun."""
        return bool(row["id"] <= self.last)


def repetition(
    connection: Connection, sweep: str | None, rerun: Rerun, folder: Path | None = None
) -> Repeat:
    """Return which runs a sweep makes again, as the database is when the sweep starts.

    The next rerun of a sweep of this name continues an interrupted one. The start of the rerun is
    in its row in ``sweeps`` until each of its runs has been made.

    Args:
        connection: To the database.
        sweep: The sweep's name.
        rerun: The results to make again.
        folder: The folder of data sets; None for the usual one.
    """
    if rerun != "all":
        return (
            functools.partial(changed, data=data_at_hand(folder)) if rerun == "changed" else never
        )
    latest = (
        select(sweeps.c.rerun_after)
        .where(sweeps.c.name == sweep)
        .order_by(sweeps.c.id.desc())
        .limit(1)
    )
    left = connection.execute(latest).scalar()
    if left is not None:
        return UpTo(left, goes_on=True)
    highest = connection.execute(
        select(func.max(runs.c.id)).where(runs.c.status.in_((*ENDED, "failed")))
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
        found = [] if connection is None else connection.execute(columns).mappings().all()
        self._rows = {row["run_key"]: row for row in found}

    @property
    def goes_on(self) -> bool:
        """True if an interrupted rerun is continued."""
        return isinstance(self.repeat, UpTo) and self.repeat.goes_on

    def has(self, run_key: str) -> bool:
        """Return True if there is a run with this key, whatever its status."""
        return run_key in self._rows

    def of(self, run_key: str) -> Literal["stored", "failed"] | None:
        """Return the status of a run that has ended and is not made again; None if it is made.

        The caller decides if a failed run is made again.
        """
        row = self._rows.get(run_key)
        if row is not None and row["status"] in ENDED:
            if not self.repeat(row):
                return "stored"
            row = self._rows.get(run_key + RERUN_SUFFIX)
        return (
            "failed"
            if row is not None and row["status"] == "failed" and not self.repeat(row)
            else None
        )

    def stored(self, keys: Iterable[str]) -> frozenset[str]:
        """Return the keys whose run has a result that is not made again."""
        return frozenset(key for key in keys if self.of(key) == "stored")

    def to_make(self, keys: Iterable[str], *, retry_failed: bool) -> ToMake:
        """Return the keys of the runs that are made, in the order of ``keys``.

        Each key has the end time of the stored result or failure, which distinguishes that one from
        the result of the sweep; None if there is neither.

        Args:
            keys: Keys of the sweep's runs.
            retry_failed: True if runs that are stored as failed are made again.
        """
        done = ("stored",) if retry_failed else ("stored", "failed")
        return {key: self._ended(key) for key in dict.fromkeys(keys) if self.of(key) not in done}

    def _ended(self, run_key: str) -> dt.datetime | None:
        row = self._rows.get(run_key)
        return (
            row["finished_at"] if row is not None and row["status"] in (*ENDED, "failed") else None
        )

    def compare(self, keys: Iterable[str]) -> CodeComparison:
        """Compare the code and data of the runs that have a result with the current ones."""
        rows = (self._rows.get(key) for key in keys)
        texts = (
            (row["code_digests"], 1) for row in rows if row is not None and row["status"] in ENDED
        )
        return compare(texts, self._folder)


def stand(database: str, sweep: str | None, rerun: Rerun, folder: Path | None = None) -> Standing:
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
            return Standing(
                None, UpTo(0) if rerun == "all" else changed if rerun == "changed" else never
            )
        with translated_errors(database), engine.connect() as connection:
            if sweep is not None:
                refuse_name_of_search(connection, sweep.partition(" ")[0])
            return Standing(connection, repetition(connection, sweep, rerun, folder), folder)

    return through_outages(shown(database), busy_seconds(), read)
