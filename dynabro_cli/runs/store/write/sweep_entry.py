"""The row of a sweep in ``sweeps``, from its start to its end."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, delete, insert, select, union, update

from dynabro_cli.core.errors import DynabroError, InterruptedRunError, PreemptedError
from dynabro_cli.runs.store.ownership import new_owner, presumed_dead, sign_of_life
from dynabro_cli.runs.store.tables import runs as runs_table
from dynabro_cli.runs.store.tables import sweep_runs, sweeps
from dynabro_cli.runs.store.write.standing import EndTimes
from dynabro_cli.runs.store.write.transactions import KeptConnection, transact

if TYPE_CHECKING:
    from typing import Self


class SweepEntry:
    """Keep a sweep ``running`` in the database within the context; then ``finished``, ``failed`` or
    ``interrupted``.

    It is ``interrupted`` if a signal ends it, and ``failed`` if some of its runs failed or any
    other error ends it. Within the context, ``heartbeats`` must keep its ``owner`` alive. A row
    whose writer has died stays ``running``; ``presumed_dead`` distinguishes it from a live one. If
    the end cannot be written, the row stays ``running``; every run is stored.

    Args:
        engine: A database opened for writing, or a connection to one that recorders share.
        name: The name that the runs are stored under.
        runs: Number of runs.
        listed: Keys of its runs, whichever sweep made them, as ``Standing.end_times`` returns them.
        jobs: Number of runs at a time.
        executor: The executor's name.
        text: Returns the text of the sweep's file, None if it is unknown. It is called in the
            transaction that stores the row: an error that it raises leaves nothing stored.
        rerun_after: For a rerun of all runs, the highest id that is made again; kept until
            ``complete`` is set.
        stored_before: Number of runs that were stored before, and are not made.

    Attributes:
        owner: The name of this sweep in the column ``owner``.
        id: The number of the row, within the context.
        failed: To be set if runs failed.
        complete: To be set if no run is left to make.

    Raises:
        DynabroError: The database cannot be written at the start of the sweep, or ``text`` raises
            it.
    """

    def __init__(
        self,
        engine: Engine | KeptConnection,
        *,
        name: str,
        runs: int,
        listed: EndTimes,
        jobs: int,
        executor: str,
        text: Callable[[Connection], str | None] = lambda _: None,
        rerun_after: int | None = None,
        stored_before: int = 0,
    ) -> None:
        self.owner = new_owner()
        self.failed = self.complete = False
        self._engine = engine
        self._listed, self._text = listed, text
        self._values = {
            "name": name,
            "runs": runs,
            "stored_before": stored_before,
            "jobs": jobs,
            "executor": executor,
            "rerun_after": rerun_after,
        }
        self.id: int | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        transact(self._engine, self._begin)
        self._began = time.monotonic()
        return self

    def _begin(self, connection: Connection) -> None:
        """Store the sweep, and replace a row that an unanswered commit has left."""
        connection.execute(delete(sweeps).where(sweeps.c.owner == self.owner))
        now = sign_of_life(connection)
        who = {"owner": self.owner, "host": platform.node(), "pid": os.getpid()}
        text = self._text(connection)
        values = (
            self._values
            | who
            | now
            | {"status": "running", "started_at": now["heartbeat_at"], "yaml": text}
        )
        self.id = connection.execute(
            insert(sweeps).values(values).returning(sweeps.c.id)
        ).scalar_one()
        self._list_runs(connection, now["heartbeat_at"])

    def _list_runs(self, connection: Connection, now: dt.datetime) -> None:
        """Store the list of this sweep's runs; delete the lists of former sweeps of its name."""
        namesakes = select(sweeps).where(
            sweeps.c.name == self._values["name"], sweeps.c.id != self.id
        )
        over = [
            row["id"]
            for row in connection.execute(namesakes).mappings()
            if row["status"] != "running" or presumed_dead(row, now)
        ]
        connection.execute(delete(sweep_runs).where(sweep_runs.c.sweep_id.in_(over)))
        if self._listed:
            rows = [
                {"sweep_id": self.id, "run_key": key, "ended_before": when}
                for key, when in self._listed.items()
            ]
            connection.execute(insert(sweep_runs), rows)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        status = "failed" if self.failed or error is not None else "finished"
        if isinstance(error, InterruptedRunError | PreemptedError | KeyboardInterrupt):
            status = "interrupted"
        done = {"rerun_after": None} if self.complete and error is None else {}
        ended = {"status": status, "wall_seconds": time.monotonic() - self._began, **done}
        with contextlib.suppress(DynabroError):
            transact(self._engine, lambda connection: self._end(connection, ended))

    def _end(self, connection: Connection, ended: dict[str, Any]) -> None:
        now = sign_of_life(connection)
        mine = (sweeps.c.id == self.id) & (sweeps.c.owner == self.owner)
        connection.execute(
            update(sweeps).where(mine).values(now | ended | {"ended_at": now["heartbeat_at"]})
        )


def is_listed(connection: Connection, name: str, keys: Iterable[str]) -> bool:
    """Return True if the database has all these runs as runs of a sweep, made by it or on its list,
    and the last row of the sweep has an end.
    """
    rows = select(sweeps.c.status).where(sweeps.c.name == name).order_by(sweeps.c.id.desc())
    if connection.execute(rows.limit(1)).scalar() == "running":  # its command was killed
        return False
    made = select(runs_table.c.run_key).where(runs_table.c.sweep == name)
    listed = select(sweep_runs.c.run_key).join(sweeps).where(sweeps.c.name == name)
    return set(connection.execute(union(made, listed)).scalars()).issuperset(keys)
