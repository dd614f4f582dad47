"""The rows of a search's trials: begun before their runs, ended after them, and taken over from a
command that has died.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, insert, select, update

from dynabro_cli.core.errors import DatabaseError, SpecError
from dynabro_cli.experiment.comparison import changed_components
from dynabro_cli.experiment.key import canonical_json
from dynabro_cli.runs.store.open.value_types import unsound_rows
from dynabro_cli.runs.store.ownership import database_time, presumed_dead
from dynabro_cli.runs.store.read.searches import OF_SEARCH, codes_of, trials_of
from dynabro_cli.runs.store.tables import sweep_runs, sweeps, trials

if TYPE_CHECKING:
    from dynabro_cli.experiment.grid.search import Search

MOST_REASON = 200
"""Most characters of the reason why a search cannot be read, which may quote its text."""


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


def sound_trials(connection: Connection) -> list[dict[str, Any]]:
    """Return the trials that ``unsound`` has no problem with, by search and number."""
    wrong = unsound(connection)
    return [row for row in _rows(connection) if (row["search"], row["number"]) not in wrong]


def new_trials(
    theirs: Sequence[Mapping[str, Any]], reading: Connection, here: Connection | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the trials of another database that are missing here, as they would be stored, and the
    searches left out.

    Trials of a search that is here, too, get the next numbers. They are left out if the two
    searches differ.

    Args:
        theirs: The ``sound_trials`` of the other database.
        reading: A connection to the other database.
        here: A connection to this database; None if it does not exist.
    """
    new_rows, different = [], []
    of_theirs, of_ours = _commands(reading), {} if here is None else _commands(here)
    for name, rows in itertools.groupby(theirs, key=lambda row: str(row["search"])):
        present = select(trials.c.run_keys, trials.c.number).where(trials.c.search == name)
        numbers = (
            {} if here is None else {row.run_keys: row.number for row in here.execute(present)}
        )
        missing = [{**row, "sweep_id": None} for row in rows if row["run_keys"] not in numbers]
        file = name.partition(": ")[0]
        if (
            missing
            and here is not None
            and (numbers or file in of_ours)
            and not _same_question(
                _search(here, of_ours.get(file)), _search(reading, of_theirs.get(file))
            )
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


def copy(
    theirs: Sequence[Mapping[str, Any]], reading: Connection, connection: Connection
) -> tuple[int, list[str]]:
    """Copy ``new_trials``, and the texts of new searches; return the number of trials, and the
    searches that are left out.
    """
    missing, different = new_trials(theirs, reading, connection)
    of_theirs, of_ours = _commands(reading), _commands(connection)
    for name in dict.fromkeys(row["search"].partition(": ")[0] for row in missing):
        if name not in of_ours:
            command = select(sweeps).where(sweeps.c.id == of_theirs[name])
            row = reading.execute(command).mappings().one()
            status = "interrupted" if row["status"] == "running" else row["status"]
            values = {key: value for key, value in row.items() if key != "id"} | {"status": status}
            connection.execute(insert(sweeps).values(values))
    if missing:
        connection.execute(insert(trials), missing)
    return len(missing), different


def _rows(connection: Connection) -> list[dict[str, Any]]:
    every = select(trials).order_by(trials.c.search, trials.c.number)
    return [dict(row) for row in connection.execute(every).mappings()]


def stored_search(connection: Connection, name: str) -> Search:
    """Return the stored search with a file's name.

    Raises:
        DatabaseError: Its text is missing, or is not a search's.
    """
    search = _search(connection, _commands(connection).get(name))
    if isinstance(search, str):
        raise DatabaseError(f"search {name} cannot be read: {search}. Try: dynabro db check")
    return search


def _commands(connection: Connection) -> dict[str, int]:
    """Return the ids of the last sound command on the file of each search, by the file's name."""
    wrong = unsound_rows(connection, sweeps)
    rows = select(sweeps.c.id, sweeps.c.name).where(OF_SEARCH).order_by(sweeps.c.id)
    return {name: number for number, name in connection.execute(rows) if (number,) not in wrong}


def _search(connection: Connection, command: int | None) -> Search | str:
    """Return the search of a command, or the reason why it cannot be read."""
    if command is None:
        return "its text is missing"
    text = select(sweeps.c.yaml, sweeps.c.name).where(sweeps.c.id == command)
    return _parsed(*connection.execute(text).one())


@functools.cache  # merge reads all texts before it holds the database
def _parsed(text: str, name: str) -> Search | str:
    from dynabro_cli.experiment.grid.search_file import parse_search  # it loads all components

    try:
        return parse_search(text, name)
    except SpecError as error:
        return f"{error.problems[0]:.{MOST_REASON}}"


def _same_question(search: Search | str, other: Search | str) -> bool:
    """Return True if two stored searches are spelled the same, except for keys that may change."""
    from dynabro_cli.experiment.grid.search_file import fixed_part

    return (
        not isinstance(search, str)
        and not isinstance(other, str)
        and fixed_part(search) == fixed_part(other)
    )


def _problem(row: Mapping[str, Any], search: Search | str) -> str | None:
    """Return the problem of a trial's texts, which ``begin`` cannot have written; None if it wrote
    them.
    """
    try:
        parameters, keys = json.loads(row["parameters"]), json.loads(row["run_keys"])
    except (ValueError, TypeError, RecursionError):
        parameters = keys = None
    if (
        not isinstance(parameters, dict)
        or not isinstance(keys, list)
        or not keys
        or not all(isinstance(key, str) for key in keys)
    ):
        return "its parameters or run keys cannot be read"
    if isinstance(search, str):
        return f"its search cannot be read ({search})"
    try:
        search.space.stored(parameters)
    except ValueError as error:
        return f"its parameters are not of its search: {error}"
    return None


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
    problems, commands = {}, _commands(connection)
    for name, rows in itertools.groupby(_rows(connection), key=lambda row: row["search"]):
        search = _search(connection, commands.get(str(name).partition(": ")[0]))
        for row in rows:
            if (problem := _problem(row, search)) is not None:
                problems[name, row["number"]] = problem
    return problems | unsound_rows(connection, trials)
