"""The rows of a search's trials: begun before their runs, ended after them, and taken over from a
command that has died.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml
from sqlalchemy import Connection, RowMapping, insert, select, update

from dynabro_cli.components.digests import changed_components
from dynabro_cli.experiment.key import canonical_json
from dynabro_cli.store.open.value_types import unsound_rows
from dynabro_cli.store.ownership import database_time, presumed_dead
from dynabro_cli.store.read.searches import OF_SEARCH, codes_of, described, file_text, trials_of
from dynabro_cli.store.tables import sweep_runs, sweeps, trials

CHANGEABLE = (
    "description",
    "plugins",
    "grid",
    "first",
    "trials",
    "sampler",
    "sampler_seed",
    "pruner",
    "then",
)
"""Keys of a search's file that may change while trials are added."""


def begin(
    connection: Connection,
    search: str,
    number: int,
    sweep_id: int | None,
    parameters: Mapping[str, Any],
    keys: Sequence[str],
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
    row = {
        "search": search,
        "number": number,
        "sweep_id": sweep_id,
        "status": "running",
        "value": None,
    }
    connection.execute(insert(trials).values(row | values))
    if sweep_id is not None:
        add_to_list(connection, sweep_id, keys)
    return True


def add_to_list(connection: Connection, sweep_id: int, keys: Sequence[str]) -> None:
    """Add runs to the list of a command."""
    stored = select(sweep_runs.c.run_key).where(
        sweep_runs.c.sweep_id == sweep_id, sweep_runs.c.run_key.in_(keys)
    )
    listed = set(connection.execute(stored).scalars())
    fresh = [
        {"sweep_id": sweep_id, "run_key": key} for key in dict.fromkeys(keys) if key not in listed
    ]
    if fresh:
        connection.execute(insert(sweep_runs), fresh)


def end(connection: Connection, search: str, number: int, status: str, value: float | None) -> None:
    """Store the end of a trial, unless it has ended already; an infinite value is stored as
    NULL.
    """
    mine = (
        (trials.c.search == search) & (trials.c.number == number) & (trials.c.status == "running")
    )
    stored = value if value is not None and math.isfinite(value) else None
    connection.execute(update(trials).where(mine).values(status=status, value=stored))


def new_trials(
    reading: Connection, here: Connection | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the sound trials of another database that are missing here, as they would be stored,
    and the searches left out.

    Trials of a search that is here, too, get the next numbers. They are left out if the two
    searches differ.

    Args:
        reading: A connection to the other database.
        here: A connection to this database; None if it does not exist.
    """
    wrong, every = (
        unsound(reading),
        reading.execute(select(trials).order_by(trials.c.search, trials.c.number)).mappings(),
    )
    rows = [dict(row) for row in every if (row["search"], row["number"]) not in wrong]
    new_rows, different = [], []
    for name, theirs in itertools.groupby(rows, key=lambda row: str(row["search"])):
        file = name.partition(": ")[0]
        present = select(trials.c.run_keys, trials.c.number).where(trials.c.search == name)
        numbers = (
            {} if here is None else {row.run_keys: row.number for row in here.execute(present)}
        )
        missing = [row | {"sweep_id": None} for row in theirs if row["run_keys"] not in numbers]
        text = None if here is None else file_text(here, file)
        if (
            missing
            and (numbers or text is not None)
            and not _same_question(text, file_text(reading, file))
        ):
            different.append(name)
            continue
        after = max(numbers.values(), default=-1) + 1
        new_rows += (
            [row | {"number": number} for number, row in enumerate(missing, after)]
            if numbers
            else missing
        )
    return new_rows, different


def copy(reading: Connection, connection: Connection) -> tuple[int, list[str]]:
    """Copy ``new_trials``, and the texts of new searches; return the number of trials, and the
    searches that are left out.
    """
    missing, different = new_trials(reading, connection)
    wrong = unsound_rows(reading, sweeps)
    for name in dict.fromkeys(row["search"].partition(": ")[0] for row in missing):
        theirs = select(sweeps).where(
            sweeps.c.name == name, OF_SEARCH, sweeps.c.id.not_in([number for (number,) in wrong])
        )
        row = reading.execute(theirs.order_by(sweeps.c.id.desc()).limit(1)).mappings().first()
        if row is not None and file_text(connection, name) is None:
            status = "interrupted" if row["status"] == "running" else row["status"]
            values = {key: value for key, value in row.items() if key != "id"} | {"status": status}
            connection.execute(insert(sweeps).values(values))
    if missing:
        connection.execute(insert(trials), missing)
    return len(missing), different


def _same_question(text: str | None, other: str | None) -> bool:
    """Return True if the files of two stored searches are spelled the same, except for keys that
    may change.
    """
    try:
        first, second = (
            {k: v for k, v in yaml.safe_load(question or "").items() if k not in CHANGEABLE}
            for question in (text, other)
        )
    except (AttributeError, ValueError, RecursionError, yaml.YAMLError):
        return False
    return bool(first == second)


def _is_sound(row: Mapping[str, Any] | RowMapping) -> bool:
    """Return True if the texts of a trial are what ``begin`` writes."""
    try:
        parameters, keys = json.loads(row["parameters"]), json.loads(row["run_keys"])
    except (ValueError, TypeError, RecursionError):
        return False
    return (
        isinstance(parameters, dict)
        and isinstance(keys, list)
        and all(isinstance(key, str) for key in keys)
        and bool(keys)
    )


def take_over(
    connection: Connection,
    search: str,
    sweep_id: int,
    *,
    failed: bool = False,
    changed: bool = False,
) -> list[int]:
    """Make the running trials of commands that have ended or died ours; return the numbers of all
    that are ours.

    With ``failed``, the failed trials are running again, and ours, too. With ``changed``, so are
    the trials with a run that was made with other code of a component.
    """
    every = trials_of(connection, search)
    states = ("running", "failed") if failed else ("running",)
    codes = (
        codes_of(connection, [key for trial in every for key in trial.run_keys]) if changed else {}
    )
    other = {key for key, code in codes.items() if changed_components(code)}
    rows = [
        trial for trial in every if trial.status in states or other.intersection(trial.run_keys)
    ]
    owners = select(sweeps).where(
        sweeps.c.id.in_({trial.sweep_id for trial in rows if trial.sweep_id is not None})
    )
    now = database_time(connection)
    alive = {
        row["id"]
        for row in connection.execute(owners).mappings()
        if row["id"] != sweep_id and row["status"] == "running" and not presumed_dead(row, now)
    }
    dead = [
        trial.number for trial in rows if trial.status != "running" or trial.sweep_id not in alive
    ]
    which = (trials.c.search == search) & trials.c.number.in_(dead)
    connection.execute(update(trials).where(which).values(sweep_id=sweep_id, status="running"))
    return dead


def unsound(connection: Connection) -> dict[tuple[Any, ...], str]:
    """Return the problem of each trial that dynabro cannot have written, by search and number."""
    table = connection.execute(select(trials).order_by(trials.c.search, trials.c.number))
    rows = {(row["search"], row["number"]): row for row in table.mappings()}
    problems = {
        place: "its parameters or run keys cannot be read"
        for place, row in rows.items()
        if not _is_sound(row)
    }
    sound = {place: row for place, row in rows.items() if place not in problems}
    problems |= _of_other_kinds(sound)
    files = {str(search).partition(": ")[0] for search, _ in sound}
    wrong = {number for (number,) in unsound_rows(connection, sweeps)}
    unread = {file for file in files if not _is_described(connection, file, wrong)}
    problems |= {
        place: "the row of its search in sweeps has no readable text"
        for place in sound
        if str(place[0]).partition(": ")[0] in unread
    }
    return problems | unsound_rows(connection, trials)


def _of_other_kinds(rows: Mapping[Any, Mapping[str, Any] | RowMapping]) -> dict[Any, str]:
    """Return the problem of each trial with a parameter that is neither a text nor a number, or is
    a text where most trials of the search have a number, or the other way round.
    """
    values: dict[tuple[str, str], dict[Any, type[Any] | None]] = {}
    for place, row in rows.items():
        for name, value in json.loads(row["parameters"]).items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            kind = str if isinstance(value, str) else float if number else None
            values.setdefault((place[0], name), {})[place] = kind
    problems = {}
    for (_, name), kinds in values.items():
        usual = Counter(filter(None, kinds.values())).most_common(1)
        for place, kind in kinds.items():
            if not usual or kind is not usual[0][0]:
                problems[place] = f"its parameter {name} is of another type than in other trials"
    return problems


def _is_described(connection: Connection, file: str, wrong: Collection[int]) -> bool:
    """Return True if the last sound row of a search's command has a text that says what it
    optimises.
    """
    rows = select(sweeps.c.yaml).where(sweeps.c.name == file, OF_SEARCH, sweeps.c.id.not_in(wrong))
    text = connection.execute(rows.order_by(sweeps.c.id.desc()).limit(1)).scalar()
    return described(text) is not None
