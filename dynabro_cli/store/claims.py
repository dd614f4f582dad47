"""Who may write a run's row: what is there already, whose it is, and what takes its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, select, update

from dynabro_cli.errors import AlreadyStoredError, RunHeldError
from dynabro_cli.experiment.key import canonical_json
from dynabro_cli.store.ownership import database_time, lease_seconds, presumed_dead, silence
from dynabro_cli.store.tables import runs

RERUN_SUFFIX = "+rerun"
"""What a repetition's key ends with until it is complete and takes the place of the first result."""

ENDED = ("finished", "diverged")
"""The statuses of a result."""
Repeat = Callable[[Any], bool]
"""Says of a stored run, by its row in ``runs``, if it is to be made again."""


def always(row: RowMapping) -> bool:
    """Make every run again."""
    return True


def find(connection: Connection, run_key: str) -> RowMapping | None:
    """The row of the run that is stored under a key; None where there is none."""
    return connection.execute(select(runs).where(runs.c.run_key == run_key)).mappings().first()


def claim(connection: Connection, run_key: str, *, repeat: Repeat) -> RowMapping | None:
    """Return the row whose place a run takes, or that it continues; None where there is none.

    Raises:
        AlreadyStoredError: The run has a result, and is not to be repeated.
        RunHeldError: Another live process is working on it.
    """
    row = find(connection, run_key)
    if row is not None and row["status"] in ENDED:
        if not repeat(row):
            raise AlreadyStoredError(f"run {row['id']} is stored as {row['status']} already")
        return claim(connection, run_key + RERUN_SUFFIX, repeat=repeat)
    if row is not None:
        refuse_if_live(connection, row)
    return row


def free_key(connection: Connection, run_key: str) -> str:
    """The key to store a run under for now."""
    return run_key if find(connection, run_key) is None else run_key + RERUN_SUFFIX


def continued(before: str, now: str, rounds_done: int) -> str:
    """The versions of a run that goes on: those of now, and what was different up to here, if anything was."""
    old, new = json.loads(before), json.loads(now)
    history = old.pop("continued", [])
    changed = {name: old.get(name) for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)}
    if changed:
        history.append({"rounds": rounds_done} | changed)
    return canonical_json(new | ({"continued": history} if history else {}))


def take_place(connection: Connection, run_id: int | None) -> None:
    """Let a complete repetition take the place of the result that it repeats."""
    key = connection.execute(select(runs.c.run_key).where(runs.c.id == run_id)).scalar_one()
    if key.endswith(RERUN_SUFFIX):
        original = key.removesuffix(RERUN_SUFFIX)
        connection.execute(delete(runs).where(runs.c.run_key == original))
        connection.execute(update(runs).where(runs.c.id == run_id).values(run_key=original))


def refuse_if_live(connection: Connection, row: RowMapping | Mapping[str, Any]) -> None:
    """Raise RunHeldError where a run is in progress in a process that is alive, or may be."""
    if row["status"] != "running":
        return
    now = database_time(connection)
    if presumed_dead(row, now):
        return
    heard = silence(row, now) or 0.0
    raise RunHeldError(
        f"run {row['id']} is in progress in process {row['pid']} on {row['host']}, heard of {heard:.0f} s ago; wait for it, or "
        f"end that process; one that is stopped, or on another machine, counts as gone after {lease_seconds():g} silent seconds"
    )
