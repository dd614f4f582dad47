"""The only writer of runs: events of a run in, rows out."""

from __future__ import annotations

import datetime as dt
import functools
import json
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, delete, insert, select, update

from dynabro_cli.core import events
from dynabro_cli.core.errors import (
    DynabroError,
    LostDatabaseError,
    LostRunError,
    RunHeldError,
    StorageError,
)
from dynabro_cli.core.machine.failpoints import failpoint
from dynabro_cli.experiment.key import canonical_json
from dynabro_cli.runs.store.environments import as_columns, versions_of
from dynabro_cli.runs.store.open.translation import shown
from dynabro_cli.runs.store.ownership import (
    NOBODY,
    database_time,
    lease_seconds,
    new_owner,
    sign_of_life,
)
from dynabro_cli.runs.store.tables import (
    RERUN_SUFFIX,
    RESULT_STATUSES,
    runs,
    worker_labels,
)
from dynabro_cli.runs.store.write import row_digests, switch_recovery
from dynabro_cli.runs.store.write.origin import Origin
from dynabro_cli.runs.store.write.side_files import SideFiles
from dynabro_cli.runs.store.write.standing import (
    Repeat,
    Row,
    StoredState,
    always,
    claim,
    find,
    state_of,
    take_place,
)
from dynabro_cli.runs.store.write.transactions import KeptConnection, transact
from dynabro_cli.runs.store.write.waiting_rows import WaitingRows, counts, cut, finite

COMMIT_SECONDS = 1.0
"""Least time between two commits of rows, because a commit waits for the disk. It is not
``FLUSH_ROUNDS``, by which the simulation groups rounds into events: rounds take microseconds to
minutes, and a reader should see progress at any speed.
"""


NOWHERE = Origin()

SaveModel = Callable[[events.Weights], dict[str, Any]]
"""Write a model; return the columns of the run's row that describe its file."""


class _Resumption(NamedTuple):
    """A run to resume: its row, and the name of the checkpoint that has been read."""

    run_id: int
    checkpoint: str


class Recorder:
    """Write the events of one run after another, each batch of rows in one transaction.

    Rows are committed at least every ``COMMIT_SECONDS`` seconds of events, and before a checkpoint
    counts. A run becomes ``finished`` in the transaction that writes its last row. A number that is
    NaN or infinite is stored as NULL.

    A run in progress belongs to its recorder. If the recorder is silent for longer than its lease
    (``heartbeats`` prevents that), another may take over the run, and this recorder can no longer
    write it.

    Args:
        engine: A database opened for writing, or a connection to one that recorders share.
        origin: The user's checkout, tags and note, to be stored.
        sweep: The name of the sweep that the runs belong to.
        repeat: Returns True for a run with a result that is recorded again, to replace the result.
        files: The place of checkpoints; by default beside the database.
        save_model: Writes the model of a ``Weights`` event; None to ignore models.

    Attributes:
        owner: The name of this recorder in the column ``owner``.
    """

    def __init__(
        self,
        engine: Engine | KeptConnection,
        *,
        origin: Origin = NOWHERE,
        sweep: str | None = None,
        repeat: Repeat = always,
        files: SideFiles | None = None,
        save_model: SaveModel | None = None,
    ) -> None:
        self.owner = new_owner()
        self._engine, self._files = engine, files or SideFiles.of(engine.url)
        self._origin, self._sweep = origin, sweep
        self._repeat = repeat
        self._save_model = save_model
        self._model: dict[str, Any] = {}
        self._run_id: int | None = None
        self._key, self._versions = "", "{}"
        self._resumption: _Resumption | None = None
        self._waiting = WaitingRows()
        self._last_commit = self._started = 0.0
        self._totals = events.Totals(0, 0, 0, 0)
        self._old_files: list[str] = []
        # of the transaction in progress, by the clock of the database
        self._attempts: list[dt.datetime] = []

    @property
    def run_id(self) -> int | None:
        """The id of the run that is being recorded."""
        return self._run_id

    def state(self, run_key: str) -> StoredState:
        """Return the state of the run with this key now.

        Raises:
            RunHeldError: Another live process is making it, or repeating it.
        """
        return state_of(self._engine, run_key, self._repeat)

    def checkpoint(self, run_key: str) -> bytes | None:
        """Return the checkpoint that the next run with this key resumes from; None if it starts
        from the beginning.

        The next ``Started`` with ``resumed`` continues from there.
        """

        def look(connection: Connection) -> StoredState:
            return StoredState.of(run_key, functools.partial(find, connection), self._repeat)

        row = transact(self._engine, look).row
        if row is None or row["checkpoint"] is None:
            return None
        data = self._files.load(row["checkpoint"])
        self._resumption = None if data is None else _Resumption(row["id"], row["checkpoint"])
        if data is None:
            warnings.warn(
                f"run {row['id']}: its checkpoint is missing or damaged; the run starts from the "
                "beginning",
                stacklevel=2,
            )
        return data

    def record(self, event: events.Event) -> None:
        """Record one event of the current run; ``Started`` begins a new run.

        A run with this key that was interrupted, failed, or was left behind by a dead process is
        replaced. A result is replaced only when the new run has ended, too. ``Checkpointed`` counts
        when everything before it is stored.

        Raises:
            RunHeldError: Another live process is making the run. LostRunError: Another process has
                taken over the run.
            LostDatabaseError: The run or the database was removed or replaced.
            AlreadyStoredError: The run has a result, and is not to be repeated.
            BusyError: Another program holds the database.
            StorageError: The disk is full.
        """
        if isinstance(event, events.Started):
            self._start(event)
        elif isinstance(event, events.RoundsDone):
            self._waiting.rounds += event.rounds
            self._waiting.identities += event.identities
            self._totals = event.totals
            self._commit_if_due()
        elif isinstance(event, events.Evaluated):
            self._waiting.evaluations.append(event)
            self._commit_if_due()
        elif isinstance(event, events.Checkpointed):
            self._save(event)
        elif isinstance(event, events.Weights):
            if self._save_model is not None:
                about = self._save_model(event)
                self._model = about if event.final else {}
        else:
            failpoint("before-finish")
            self._totals = event.totals
            final = {"accuracy": event.accuracy, "loss": event.loss, "gap": event.gap}
            status = "finished" if isinstance(event, events.Finished) else "diverged"
            columns = self._model | {
                f"final_{name}": finite(value) for name, value in final.items()
            }
            if event.how:
                columns["versions"] = canonical_json(json.loads(self._versions) | event.how)
            self._end(status, columns)

    def _save(self, event: events.Checkpointed) -> None:
        """Write a checkpoint, then its name; remove unused files after the name is stored."""
        try:
            name = self._files.save(self._key, event.totals.rounds, self.owner, event.data)
        except StorageError:
            self._commit({})  # if the run was taken over, its files are gone, and this is reported
            raise
        if name is None:  # a run without checkpoints is better than no run
            self._commit({})
            return
        try:
            self._commit({"checkpoint": name})
        except LostRunError:
            self._files.remove([name])
            raise
        self._remove_old_files()
        self._old_files = [name]

    def _remove_old_files(self) -> None:
        """Remove files that existed when the run was claimed, or that this recorder wrote; never a
        successor's files.
        """
        self._files.remove(self._old_files)
        self._old_files = []

    def interrupted(self, *, doubtful: bool = False) -> None:
        """Store the current run as ``interrupted``; a doubtful one does not resume."""
        if self._run_id is not None:
            self._end("interrupted", {"checkpoint": None} if doubtful else {})
            if doubtful:
                self._remove_old_files()

    def pruned(self) -> None:
        """Store the current run as ``pruned``: it has no result, and does not resume."""
        if self._run_id is not None:
            self._end("pruned", {"checkpoint": None})
            self._remove_old_files()

    def failed(self, error: str) -> None:
        """Store the current run as ``failed``, with the end of ``error``."""
        if self._run_id is not None:
            self._end("failed", {"error": cut_text(error)})

    def failed_before_going_on(self, run_key: str, error: str) -> bool:
        """Store that a run failed before it could resume from its checkpoint, and keep its rows.

        Returns:
            True if there is a checkpoint; otherwise nothing is stored.

        Raises:
            RunHeldError: Another live process is making the run.
            AlreadyStoredError: The run has a result.
        """

        def fail(connection: Connection) -> bool:
            row = claim(connection, run_key, repeat=self._repeat, owner=self.owner).row
            if row is None or row["checkpoint"] is None:
                return False
            ending = {
                "status": "failed",
                "error": cut_text(error),
                "finished_at": database_time(connection),
                **NOBODY,
            }
            connection.execute(update(runs).where(runs.c.id == row["id"]).values(ending))
            return True

        return transact(self._engine, fail)

    def _start(self, event: events.Started) -> None:
        began = self._last_commit = time.monotonic()
        self._waiting, self._attempts = WaitingRows(), []
        self._totals, self._model = event.resumed or events.Totals(0, 0, 0, 0), {}
        failpoint("before-claim")
        before = transact(self._engine, lambda connection: self._claim(connection, event))
        self._started = began - before
        if event.resumed is None:
            self._remove_old_files()
        self._resumption = None
        failpoint("after-claim")

    def _claim(self, connection: Connection, event: events.Started) -> float:
        """Store that the run is in progress here; return the seconds that it took before."""
        now = sign_of_life(connection)
        columns = (
            event.record
            | now
            | {
                "status": "running",
                "pid": os.getpid(),
                "owner": self.owner,
                "error": None,
                "finished_at": None,
                **counts(self._totals),
            }
        )
        state = claim(connection, event.run_key, repeat=self._repeat, owner=self.owner)
        row, self._key = state.row, state.key
        self._versions, before = event.record["versions"], 0.0
        columns |= self._origin.store(connection, row or find(connection, event.run_key))
        if event.resumed is None:
            self._run_id = self._begin(
                connection, row, columns | {"started_at": now["heartbeat_at"]}, event.labels
            )
        else:
            self._run_id, before = self._go_on(connection, row, columns)
        self._old_files = self._files.names(self._key)  # while nobody else can claim it
        failpoint("claim")
        return before

    def _begin(
        self,
        connection: Connection,
        row: Row | None,
        columns: dict[str, Any],
        labels: Sequence[tuple[int, int, int]],
    ) -> int:
        """Store the start of a run, which replaces ``row``; return its id."""
        if row is not None:
            connection.execute(delete(runs).where(runs.c.id == row["id"]))
        values = as_columns(connection, columns) | {"run_key": self._key, "sweep": self._sweep}
        run_id: int = connection.execute(insert(runs).returning(runs.c.id), values).scalar_one()
        if labels:
            names = worker_labels.c.keys()
            connection.execute(
                insert(worker_labels),
                [dict(zip(names, (run_id, *label), strict=True)) for label in labels],
            )
        return run_id

    def _go_on(
        self, connection: Connection, row: Row | None, columns: dict[str, Any]
    ) -> tuple[int, float]:
        """Take ``row`` back to its checkpoint, and make this recorder its owner; return its id, and
        its seconds so far.
        """
        if row is None or self._resumption != (row["id"], row["checkpoint"]):
            raise RunHeldError(
                "another process has resumed the run meanwhile. Try: the same command"
            )
        run_id: int = row["id"]
        done = self._totals.rounds
        first = done if columns["clock"] == "round" else self._totals.budget_spent
        cut(connection, run_id, done, done + 1, first)
        self._versions = continued(
            versions_of(connection, row["environment_id"]), columns["versions"], done
        )
        values = (
            columns | {"versions": self._versions} | ({"sweep": self._sweep} if self._sweep else {})
        )
        connection.execute(
            update(runs).where(runs.c.id == run_id).values(as_columns(connection, values))
        )
        return run_id, row["wall_seconds"] or 0.0

    def _commit_if_due(self) -> None:
        if time.monotonic() - self._last_commit >= COMMIT_SECONDS:
            self._commit({})

    def _commit(
        self, changes: dict[str, Any], *, ending: bool = False, complete: bool = False
    ) -> None:
        """Write the waiting rows and the run's row in one transaction; rows that could not be
        written keep waiting.

        Args:
            changes: Columns of the run's row.
            ending: The run leaves this recorder.
            complete: The run has a result.
        """
        failpoint("before-commit")
        transact(
            self._engine, lambda connection: self._write(connection, changes, ending, complete)
        )
        failpoint("after-commit")
        self._waiting, self._attempts = WaitingRows(), []
        self._last_commit = time.monotonic()

    def _write(
        self, connection: Connection, changes: dict[str, Any], ending: bool, complete: bool
    ) -> None:
        """Write what ``_commit`` has, in its transaction; again if the commit was not answered."""
        # one transaction: a crash between two statements leaves nothing of them; a crash between
        # two commits leaves rows that are newer than the last checkpoint, and ``_go_on`` deletes
        # them when the run resumes
        now = sign_of_life(connection)
        before, self._attempts = self._attempts, [*self._attempts, now["heartbeat_at"]]
        if ending:
            now |= {"finished_at": now["heartbeat_at"], **NOBODY}
        columns = now | as_columns(connection, changes)
        if self._run_id is None or not self._update_row(connection, columns):
            if self._has_ended(connection, before):
                return
            raise self._lost(connection)
        if before:  # an attempt that was not answered may have stored the rows
            self._waiting.remove(connection, self._run_id)
        self._waiting.insert(connection, self._run_id)
        if complete:
            switch_recovery.store(connection, self._run_id)
            take_place(connection, self._run_id)
            row_digests.store(connection, self._run_id)

    def _update_row(self, connection: Connection, columns: dict[str, Any]) -> bool:
        """Write columns of the run's row; return False if the run is not this recorder's any
        more.
        """
        mine = (
            (runs.c.id == self._run_id)
            & (runs.c.owner == self.owner)
            & (runs.c.status == "running")
        )
        values = counts(self._totals) | {"wall_seconds": time.monotonic() - self._started} | columns
        return bool(connection.execute(update(runs).where(mine).values(values)).rowcount)

    def _has_ended(self, connection: Connection, attempts: Sequence[dt.datetime]) -> bool:
        """Return True if one of this recorder's earlier attempts has stored the run's end: only the
        answer was lost.
        """
        ended_at = connection.execute(
            select(runs.c.finished_at).where(runs.c.id == self._run_id)
        ).scalar()
        return ended_at is not None and ended_at in attempts

    def _lost(self, connection: Connection) -> DynabroError:
        """Leave the current run, which this recorder does not own any more; return the error with
        the reason.
        """
        lost, self._run_id = self._run_id, None
        row = find(connection, self._key) or find(connection, self._key.removesuffix(RERUN_SUFFIX))
        if row is None:
            return LostDatabaseError(
                f"run {lost} is not in {shown(self._engine.url)} any more: the run was "
                "removed, or the database was replaced. "
                "Try: repeat the command to make the run again"
            )
        return LostRunError(
            f"run {lost} was taken over by another process ({row['pid']} on {row['host']}), "
            "which found this one suspended or "
            "silent; what that process stores counts; this command leaves the run to it, "
            f"for {lease_seconds():g} s at least"
        )

    def _end(self, status: str, changes: dict[str, Any]) -> None:
        done = status in RESULT_STATUSES
        self._commit(
            {"status": status} | changes | ({"checkpoint": None} if done else {}),
            ending=True,
            complete=done,
        )
        if done:
            self._remove_old_files()
        self._run_id = None


def continued(before: str, now: str, rounds_done: int) -> str:
    """Return the versions of a resumed run: the current versions, and earlier ones if they
    differ.
    """
    old, new = json.loads(before), json.loads(now)
    history = old.pop("continued", [])
    changed = {
        name: old.get(name)
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    }
    if changed:
        history.append({"rounds": rounds_done} | changed)
    return canonical_json(new | ({"continued": history} if history else {}))


def cut_text(error: str) -> str:
    """Return the end of a message, without the one character that PostgreSQL's text type does not
    have.
    """
    return error[-4000:].replace("\0", "\ufffd")
