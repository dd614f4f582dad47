"""The rows of a search's trials: begun before their runs, ended after them, and taken over from a command that has died."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, insert, select, update

from dynabro_cli.experiment.key import canonical_json
from dynabro_cli.store.ownership import database_time, presumed_dead
from dynabro_cli.store.read.searches import trials_of
from dynabro_cli.store.tables import sweep_runs, sweeps, trials


def begin(
    connection: Connection, search: str, number: int, sweep_id: int | None, parameters: Mapping[str, Any], keys: Sequence[str]
) -> bool:
    """Store a trial as ``running``; return False if another command has taken the number.

    Repeated after its own commit, it returns True.
    """
    taken = select(trials.c.sweep_id, trials.c.status, trials.c.parameters).where(
        trials.c.search == search, trials.c.number == number
    )
    values = {"parameters": canonical_json(parameters), "run_keys": json.dumps(list(keys))}
    before = connection.execute(taken).first()
    if before is not None:
        return sweep_id is not None and tuple(before) == (sweep_id, "running", values["parameters"])
    row = {"search": search, "number": number, "sweep_id": sweep_id, "status": "running", "value": None}
    connection.execute(insert(trials).values(row | values))
    if sweep_id is not None:
        list_runs(connection, sweep_id, keys)
    return True


def list_runs(connection: Connection, sweep_id: int, keys: Sequence[str]) -> None:
    """Add runs to the list of a command."""
    known = select(sweep_runs.c.run_key).where(sweep_runs.c.sweep_id == sweep_id, sweep_runs.c.run_key.in_(keys))
    listed = set(connection.execute(known).scalars())
    fresh = [{"sweep_id": sweep_id, "run_key": key} for key in dict.fromkeys(keys) if key not in listed]
    if fresh:
        connection.execute(insert(sweep_runs), fresh)


def end(connection: Connection, search: str, number: int, status: str, value: float | None) -> None:
    """Store the end of a trial, unless it has ended already; an infinite value is stored as NULL."""
    mine = (trials.c.search == search) & (trials.c.number == number) & (trials.c.status == "running")
    stored = value if value is not None and math.isfinite(value) else None
    connection.execute(update(trials).where(mine).values(status=status, value=stored))


def copy(reading: Connection, connection: Connection) -> int:
    """Copy the searches of another database that have no trial here, and the texts of their files; count the trials.

    A search that is here, too, stays as it is: two rows of one number cannot both be kept. Unreadable rows are left out.
    """
    here = set(connection.execute(select(trials.c.search)).scalars())
    found = [dict(row) for row in reading.execute(select(trials)).mappings() if row["search"] not in here and _is_sound(row)]
    for name in dict.fromkeys(row["search"].partition(": ")[0] for row in found):
        theirs = select(sweeps).where(sweeps.c.name == name, sweeps.c.yaml.is_not(None)).order_by(sweeps.c.id.desc()).limit(1)
        row = reading.execute(theirs).mappings().first()
        known = select(sweeps.c.id).where(sweeps.c.name == name, sweeps.c.yaml.is_not(None)).limit(1)
        if row is not None and connection.execute(known).first() is None:
            status = "interrupted" if row["status"] == "running" else row["status"]
            values = {key: value for key, value in row.items() if key != "id"} | {"status": status}
            connection.execute(insert(sweeps).values(values))
    if found:
        connection.execute(insert(trials), [row | {"sweep_id": None} for row in found])
    return len(found)


def _is_sound(row: RowMapping) -> bool:
    """Return True if the texts of a trial are what ``begin`` writes."""
    try:
        parameters, keys = json.loads(row["parameters"]), json.loads(row["run_keys"])
    except (ValueError, TypeError):
        return False
    return isinstance(parameters, dict) and isinstance(keys, list) and all(isinstance(key, str) for key in keys) and bool(keys)


def take_over(connection: Connection, search: str, sweep_id: int, *, failed: bool = False) -> list[int]:
    """Make the running trials of commands that have ended or died ours; return the numbers of all that are ours.

    With ``failed``, the failed trials are running again, and ours, too.
    """
    states = ("running", "failed") if failed else ("running",)
    rows = [trial for trial in trials_of(connection, search) if trial.status in states]
    owners = select(sweeps).where(sweeps.c.id.in_({trial.sweep_id for trial in rows if trial.sweep_id is not None}))
    now = database_time(connection)
    alive = {
        row["id"]
        for row in connection.execute(owners).mappings()
        if row["id"] != sweep_id and row["status"] == "running" and not presumed_dead(row, now)
    }
    left = [trial.number for trial in rows if trial.status == "failed" or trial.sweep_id not in alive]
    which = (trials.c.search == search) & trials.c.number.in_(left) & trials.c.status.in_(states)
    connection.execute(update(trials).where(which).values(sweep_id=sweep_id, status="running"))
    return left


def unsound(connection: Connection) -> list[str]:
    """Return the trials whose texts are not what dynabro writes, one per line."""
    return [
        f"trial {row['number']} of {row['search']}: its parameters or run keys cannot be read"
        for row in connection.execute(select(trials).order_by(trials.c.search, trials.c.number)).mappings()
        if not _is_sound(row)
    ]
