"""Claims on a run's row: the stored row, its owner, and which row a new run replaces."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, delete, select, update

from dynabro_cli.errors import AlreadyStoredError, RunHeldError
from dynabro_cli.experiment.key import canonical_json
from dynabro_cli.store.ownership import database_time, lease_seconds, presumed_dead, silence
from dynabro_cli.store.tables import runs

RERUN_SUFFIX = "+rerun"
"""Suffix of a repetition's key until the repetition is complete and replaces the first result."""

ENDED = ("finished", "diverged")
"""Statuses of a run with a result."""
RESULTS = f"status IN {ENDED}"
"""SQL condition for the runs with a result."""
Repeat = Callable[[Any], bool]
"""Decide from a stored run's row in ``runs`` if the run is to be made again."""

_BY_KEY = select(runs).where(runs.c.run_key == bindparam("key"))


def always(row: RowMapping) -> bool:
    """Make every run again."""
    return True


def find(connection: Connection, run_key: str) -> RowMapping | None:
    """Return the row of the run with a key, or None."""
    return connection.execute(_BY_KEY, {"key": run_key}).mappings().first()


def claim(connection: Connection, run_key: str, *, repeat: Repeat, owner: str) -> RowMapping | None:
    """Return the row that a run replaces or resumes, or None.

    A row of ``owner`` itself is the trace of a claim whose commit was not answered.

    Raises:
        AlreadyStoredError: The run has a result, and is not to be repeated.
        RunHeldError: Another live process is working on it.
    """
    row = find(connection, run_key)
    if row is not None and row["status"] in ENDED:
        if not repeat(row):
            raise AlreadyStoredError(f"run {row['id']} is stored as {row['status']} already")
        return claim(connection, run_key + RERUN_SUFFIX, repeat=repeat, owner=owner)
    if row is not None and row["owner"] != owner:
        refuse_if_live(connection, row)
    return row


def free_key(connection: Connection, run_key: str) -> str:
    """Return the key under which a run is stored for now."""
    return run_key if find(connection, run_key) is None else run_key + RERUN_SUFFIX


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


def changed(versions: str, how: dict[str, object]) -> str:
    """Return the versions of a run at its end, with the entries of ``how``."""
    return canonical_json(json.loads(versions) | how)


def take_place(connection: Connection, run_id: int | None) -> None:
    """Replace the result by its complete repetition."""
    key = connection.execute(select(runs.c.run_key).where(runs.c.id == run_id)).scalar_one()
    if key.endswith(RERUN_SUFFIX):
        original = key.removesuffix(RERUN_SUFFIX)
        connection.execute(delete(runs).where(runs.c.run_key == original))
        connection.execute(update(runs).where(runs.c.id == run_id).values(run_key=original))


def refuse_if_live(connection: Connection, row: RowMapping | Mapping[str, Any]) -> None:
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
