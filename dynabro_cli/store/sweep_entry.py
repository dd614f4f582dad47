"""The row of a sweep in ``sweeps``, from its beginning to its end."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, delete, insert, select, update

from dynabro_cli.errors import DynabroError, InterruptedRunError, PreemptedError
from dynabro_cli.store.claims import Repeat
from dynabro_cli.store.ownership import new_owner, presumed_dead, sign_of_life
from dynabro_cli.store.repetition import Standing, never
from dynabro_cli.store.tables import sweep_runs, sweeps
from dynabro_cli.store.translation import translated_errors

if TYPE_CHECKING:
    from typing import Self

ToMake = Mapping[str, dt.datetime | None]
"""Keys of runs, with the time at which what is stored of each ended."""


class SweepEntry:
    """While entered, a sweep is ``running`` in the database; then ``finished``, or ``failed`` or ``interrupted``.

    It is ``interrupted`` where a signal ends it, and ``failed`` where some of its runs failed or any other error ends it. While
    it is entered, ``heartbeats`` is to keep its ``owner`` alive; a row whose writer is gone stays ``running``, and is told
    from a live one by ``presumed_dead``. Where the end cannot be written, the row is left like that: every run is stored.

    Args:
        engine: A database opened for writing.
        name: The name that the runs are stored under.
        runs: How many there are.
        to_make: The keys of those that it makes, as ``to_make`` returns them; the others were stored before.
        jobs: How many are made at a time.
        executor: What makes them.
        rerun_after: Of a rerun of all runs, the highest id of those that it makes again; kept until ``complete`` is set.

    Attributes:
        owner: The name that this sweep has in ``owner``.
        failed: To be set where runs failed.
        complete: To be set if no run is left to make.

    Raises:
        DynabroError: The database cannot be written when the sweep begins.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        name: str,
        runs: int,
        to_make: ToMake,
        jobs: int,
        executor: str,
        rerun_after: int | None = None,
    ) -> None:
        self.owner = new_owner()
        self.failed = self.complete = False
        self._engine = engine
        self._to_make = to_make
        self._values = {
            "name": name,
            "runs": runs,
            "stored_before": runs - len(to_make),
            "jobs": jobs,
            "executor": executor,
            "rerun_after": rerun_after,
        }
        self._id: int | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        who = {"owner": self.owner, "host": platform.node(), "pid": os.getpid()}
        with translated_errors(self._engine.url), self._engine.begin() as connection:
            now = sign_of_life(connection)
            values = self._values | who | now | {"status": "running", "started_at": now["heartbeat_at"]}
            self._id = connection.execute(insert(sweeps).values(values).returning(sweeps.c.id)).scalar_one()
            self._list_runs(connection, now["heartbeat_at"])
        self._began = time.monotonic()
        return self

    def _list_runs(self, connection: Connection, now: dt.datetime) -> None:
        """Store which runs this sweep makes; forget those of former sweeps of its name, of which nothing more is told."""
        namesakes = select(sweeps).where(sweeps.c.name == self._values["name"], sweeps.c.id != self._id)
        over = [
            row["id"]
            for row in connection.execute(namesakes).mappings()
            if row["status"] != "running" or presumed_dead(row, now)
        ]
        connection.execute(delete(sweep_runs).where(sweep_runs.c.sweep_id.in_(over)))
        if self._to_make:
            rows = [{"sweep_id": self._id, "run_key": key, "ended_before": when} for key, when in self._to_make.items()]
            connection.execute(insert(sweep_runs), rows)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        status = "failed" if self.failed or error is not None else "finished"
        if isinstance(error, InterruptedRunError | PreemptedError | KeyboardInterrupt):
            status = "interrupted"
        mine = (sweeps.c.id == self._id) & (sweeps.c.owner == self.owner)
        with contextlib.suppress(DynabroError), translated_errors(self._engine.url), self._engine.begin() as connection:
            now = sign_of_life(connection)
            ended = {"status": status, "ended_at": now["heartbeat_at"], "wall_seconds": time.monotonic() - self._began}
            done = {"rerun_after": None} if self.complete and error is None else {}
            connection.execute(update(sweeps).where(mine).values(now | ended | done))


def to_make(engine: Engine, keys: Iterable[str], *, retry_failed: bool, repeat: Repeat = never) -> ToMake:
    """Return the keys of the runs that a sweep makes as the database stands, in the order of ``keys``.

    Each has the time at which what is stored of it ended, which tells that from what the sweep makes; None if there is no
    result and no failure of it.

    Args:
        engine: A database.
        keys: Of the sweep's runs.
        retry_failed: If those that are stored as failed are made again.
        repeat: Which others are made again.
    """
    done = ("stored",) if retry_failed else ("stored", "failed")
    with translated_errors(engine.url), engine.connect() as connection:
        found = Standing(connection, repeat)
    return {key: found.ended(key) for key in dict.fromkeys(keys) if found.of(key) not in done}
