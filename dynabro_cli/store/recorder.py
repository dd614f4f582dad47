"""The one writer of the database: events of a run in, rows out."""

from __future__ import annotations

import datetime as dt
import math
import os
import platform
import time
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, delete, insert, select, update

from dynabro_cli import events
from dynabro_cli.errors import AlreadyStoredError, RunHeldError
from dynabro_cli.store.engine import translated_errors
from dynabro_cli.store.tables import evaluations, rounds, runs

COMMIT_SECONDS = 1.0
RERUN_SUFFIX = "+rerun"
"""What a repetition's key ends with until it is complete and takes the place of the first result."""

ENDED = ("finished", "diverged")


@dataclass(frozen=True)
class StoredRun:
    """A run that is in the database already."""

    id: int
    status: str
    final_accuracy: float | None
    final_gap: float | None


class Recorder:
    """Writes the events of one run after another, each batch of rows in one transaction.

    Rows are committed at least every ``COMMIT_SECONDS`` seconds of events; a run becomes ``finished`` in the transaction that
    writes its last row. A number that is NaN or infinite is stored as NULL.

    Args:
        engine: A database opened for writing.
        git_commit: What to note as the commit of the user's repository.
        sweep: The name of the sweep that the runs belong to.
        repeat: Whether a run that has a result is recorded again, to take the result's place.
    """

    def __init__(self, engine: Engine, *, git_commit: str | None = None, sweep: str | None = None, repeat: bool = True) -> None:
        self._engine = engine
        self._git_commit, self._sweep = git_commit, sweep
        self._repeat = repeat
        self._run_id: int | None = None
        self._rounds: list[events.Round] = []
        self._evaluations: list[events.Evaluated] = []
        self._last_commit = self._started = 0.0
        self._totals = events.Totals(0, 0, 0, 0)

    @property
    def run_id(self) -> int | None:
        """The id of the run being recorded."""
        return self._run_id

    def stored(self, run_key: str) -> StoredRun | None:
        """Return the run with this key that has ended with a result; None where there is none.

        Raises:
            RunHeldError: Another live process is working on it.
        """
        row = self._find(run_key)
        if row is None:
            return None
        if row["status"] in ENDED:
            return StoredRun(row["id"], row["status"], row["final_accuracy"], row["final_gap"])
        _refuse_if_live(row)
        return None

    def failure(self, run_key: str) -> str | None:
        """Return why the run with this key is stored as failed; None where it is not."""
        row = self._find(run_key)
        return None if row is None or row["status"] != "failed" else row["error"] or ""

    def _find(self, run_key: str) -> RowMapping | None:
        with translated_errors(self._engine.url), self._engine.connect() as connection:
            return connection.execute(select(runs).where(runs.c.run_key == run_key)).mappings().first()

    def record(self, event: events.Event) -> None:
        """Take one event of the current run; ``Started`` begins a new one.

        A run with this key that was interrupted, failed, or was left behind by a dead process is replaced. One that ended
        with a result is replaced only when the new one has ended too.

        Raises:
            RunHeldError: Another live process is working on the run.
            AlreadyStoredError: The run has a result, and is not to be repeated.
            BusyError: Another program holds the database.
            StorageError: The disk is full.
        """
        if isinstance(event, events.Started):
            self._start(event)
        elif isinstance(event, events.RoundsDone):
            self._rounds += event.rounds
            self._totals = event.totals
            self._commit_if_due()
        elif isinstance(event, events.Evaluated):
            self._evaluations.append(event)
            self._commit_if_due()
        else:
            self._totals = event.totals
            final = {"accuracy": event.accuracy, "loss": event.loss, "gap": event.gap}
            status = "finished" if isinstance(event, events.Finished) else "diverged"
            self._end(status, {f"final_{name}": _finite(value) for name, value in final.items()})

    def interrupted(self) -> None:
        """Keep what there is of the current run, as ``interrupted``."""
        if self._run_id is not None:
            self._end("interrupted", {})

    def failed(self, error: str) -> None:
        """Keep what there is of the current run, as ``failed``, with the end of ``error``."""
        if self._run_id is not None:
            self._end("failed", {"error": error[-4000:]})

    def _start(self, event: events.Started) -> None:
        self._started = self._last_commit = time.monotonic()
        self._rounds, self._evaluations = [], []
        self._totals = events.Totals(0, 0, 0, 0)
        with translated_errors(self._engine.url), self._engine.begin() as connection:
            key = _claim_key(connection, event.run_key, repeat=self._repeat)
            row = event.record | {
                "run_key": key,
                "status": "running",
                "sweep": self._sweep,
                "git_commit": self._git_commit,
                "started_at": _now(),
                "pid": os.getpid(),
                **asdict(self._totals),
            }
            self._run_id = connection.execute(insert(runs).values(row).returning(runs.c.id)).scalar_one()

    def _commit_if_due(self) -> None:
        if time.monotonic() - self._last_commit >= COMMIT_SECONDS:
            self._commit({})

    def _commit(self, changes: dict[str, Any], *, complete: bool = False) -> None:
        """Write the rows that wait and the run's row, in one transaction; rows that could not be written go on waiting."""
        new_rounds = [_row(self._run_id, item) for item in self._rounds]
        new_evaluations = [_row(self._run_id, item) for item in self._evaluations]
        with translated_errors(self._engine.url), self._engine.begin() as connection:
            if new_rounds:
                connection.execute(insert(rounds), new_rounds)
            if new_evaluations:
                connection.execute(insert(evaluations), new_evaluations)
            connection.execute(update(runs).where(runs.c.id == self._run_id).values(asdict(self._totals) | changes))
            if complete:
                _take_place(connection, self._run_id)
        self._rounds, self._evaluations = [], []
        self._last_commit = time.monotonic()

    def _end(self, status: str, changes: dict[str, Any]) -> None:
        ending = {"status": status, "finished_at": _now(), "wall_seconds": time.monotonic() - self._started}
        self._commit(changes | ending, complete=status in ENDED)
        self._run_id = None


def _claim_key(connection: Connection, run_key: str, *, repeat: bool) -> str:
    """Make room for a run, and return the key to store it under for now."""
    row = connection.execute(select(runs).where(runs.c.run_key == run_key)).mappings().first()
    if row is not None and row["status"] in ENDED:
        if not repeat:
            raise AlreadyStoredError(f"run {row['id']} is stored as {row['status']} already")
        return _claim_key(connection, run_key + RERUN_SUFFIX, repeat=repeat)
    if row is not None:
        _refuse_if_live(row)
        connection.execute(delete(runs).where(runs.c.id == row["id"]))
    return run_key


def _take_place(connection: Connection, run_id: int | None) -> None:
    """Let a complete repetition take the place of the result that it repeats."""
    key = connection.execute(select(runs.c.run_key).where(runs.c.id == run_id)).scalar_one()
    if key.endswith(RERUN_SUFFIX):
        original = key.removesuffix(RERUN_SUFFIX)
        connection.execute(delete(runs).where(runs.c.run_key == original))
        connection.execute(update(runs).where(runs.c.id == run_id).values(run_key=original))


def _refuse_if_live(row: Any) -> None:
    """Raise RunHeldError where a run is in progress in a process that is alive, or may be."""
    if row["status"] != "running":
        return
    here = row["host"] == platform.node()
    if here and not _alive(row["pid"]):
        return
    raise RunHeldError(
        f"run {row['id']} is in progress in process {row['pid']} on {row['host']}; wait for it, or end that process"
        + ("" if here else f"; if it is gone, type sqlite3 and UPDATE runs SET status='failed' WHERE id={row['id']}")
    )


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _row(run_id: int | None, item: events.Round | events.Evaluated) -> dict[str, Any]:
    return {"run_id": run_id} | {name: _finite(value) for name, value in asdict(item).items()}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc).replace(tzinfo=None)
