"""Stored searches: their goals, trials, and the values of runs that they optimise."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, Engine, RowMapping, func, select

from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.grid.goals import GOALS
from dynabro_cli.runs.store.open.translation import translated_errors
from dynabro_cli.runs.store.tables import RESULT_STATUSES, evaluations, runs, sweeps, trials

OF_SEARCH = sweeps.c.yaml.contains("\nsearch:")
"""SQL condition for rows of ``sweeps`` that describe a search; NULL for a row without a text."""
MOST_KEYS = 500
"""Run keys in one query."""


class RunEnd(NamedTuple):
    """End of a run: its status, and the number that a search optimises; None if unknown."""

    status: str
    value: float | None


class Trial(NamedTuple):
    """A stored trial; columns of the table ``trials``, with texts read."""

    search: str
    number: int
    sweep_id: int | None
    status: str
    parameters: dict[str, Any]
    run_keys: tuple[str, ...]
    value: float | None

    @property
    def value_or_inf(self) -> float:
        """The value of a finished trial; infinity if the database has none."""
        return math.inf if self.value is None else self.value


def trials_of(connection: Connection, search: str, since: int = 0) -> list[Trial]:
    """Return the trials of a search by number, from ``since`` on."""
    wanted = (trials.c.search == search) & (trials.c.number >= since)
    rows = connection.execute(select(trials).where(wanted).order_by(trials.c.number)).mappings()
    return [_trial(row) for row in rows]


def _trial(row: RowMapping) -> Trial:
    texts = {
        "parameters": json.loads(row["parameters"]),
        "run_keys": tuple(json.loads(row["run_keys"])),
    }
    return Trial(**{**row, **texts})


def ends_of(connection: Connection, keys: Collection[str], goal: str) -> dict[str, RunEnd]:
    """Return the ends of runs by key, with what a search optimises; runs without a row are left
    out.

    A run that diverged has the worst number; its last model does not count. So has NULL, which
    stands for NaN or infinity.
    """
    source = GOALS[goal]
    last = (evaluations.c.run_id == runs.c.id) & (evaluations.c.round == runs.c.rounds)
    value = runs.c[source.final] if source.final else evaluations.c[source.evaluated]
    columns = select(runs.c.run_key, runs.c.status, value.label("value"))
    ends = {}
    for some in _slices(list(keys)):
        chosen = columns.select_from(
            runs.outerjoin(evaluations, last) if source.final is None else runs
        )
        for row in connection.execute(chosen.where(runs.c.run_key.in_(some))).mappings():
            number = (
                row["value"]
                if row["status"] == "finished" and row["value"] is not None
                else source.worst
            )
            ends[row["run_key"]] = RunEnd(
                row["status"], number if row["status"] in RESULT_STATUSES else None
            )
    return ends


def codes_of(connection: Connection, keys: Collection[str]) -> dict[str, str | None]:
    """Return the column ``code_digests`` of the stored runs with some keys, by key."""
    columns = select(runs.c.run_key, runs.c.code_digests)
    parts = (
        connection.execute(columns.where(runs.c.run_key.in_(some))) for some in _slices(list(keys))
    )
    return {key: code for rows in parts for key, code in rows}


def curves_of(connection: Connection, keys: Collection[str], goal: str) -> dict[str, list[float]]:
    """Return the number that a search optimises at each evaluation of some runs, in order, by key;
    a missing one is NaN.
    """
    column = evaluations.c[GOALS[goal].evaluated]
    values: dict[str, list[float]] = {}
    for some in _slices(list(keys)):
        chosen = select(runs.c.run_key, column).join(evaluations, evaluations.c.run_id == runs.c.id)
        for key, value in connection.execute(
            chosen.where(runs.c.run_key.in_(some)).order_by(runs.c.id, evaluations.c.round)
        ):
            values.setdefault(key, []).append(math.nan if value is None else value)
    return values


def file_text(connection: Connection, name: str) -> str | None:
    """Return the text of the search's file, as the last command on it stored it; None if it is not
    stored.
    """
    column = select(sweeps.c.yaml).where(sweeps.c.name == name, OF_SEARCH)
    return connection.execute(column.order_by(sweeps.c.id.desc()).limit(1)).scalar()


def is_sweep(connection: Connection, name: str) -> bool:
    """Return True if a command made a sweep of this name, or a shard of it, that is not a
    search.
    """
    shards = begins(sweeps.c.name, f"{name} ")
    command = select(sweeps.c.id).where((sweeps.c.name == name) | shards, OF_SEARCH.is_not(True))
    return connection.execute(command.limit(1)).first() is not None


def refuse_name_of_search(connection: Connection, name: str) -> None:
    """Raise SpecError if a search, and no sweep, is stored under the name of a sweep."""
    if file_text(connection, name) is not None and not is_sweep(connection, name):
        raise SpecError(
            f"name={name}: a search is stored under this name. Try: another name in the "
            "sweep's file"
        )


def refuse_name_of_sweep(connection: Connection, name: str) -> None:
    """Raise SpecError if a sweep, or a run of one, is stored under the name of a search that is not
    stored.
    """
    made = select(runs.c.id).where(runs.c.sweep == name).limit(1)
    if is_sweep(connection, name) or connection.execute(made).first() is not None:
        raise SpecError(
            f"name={name}: a sweep is stored under this name. Try: dynabro search --name NEW"
        )


def trials_condition(engine: Engine, names: Sequence[str]) -> str | None:
    """Return an SQL condition for the trials of some files' searches; None if there are no trials
    of one of the files.

    Raises:
        DynabroError: The database cannot be read.
    """
    conditions = []
    for name in names:
        of_name = trials.c.search.in_([name]) | begins(trials.c.search, f"{name}: ")
        with translated_errors(engine.url), engine.connect() as connection:
            if connection.execute(select(trials.c.number).where(of_name).limit(1)).first() is None:
                return None
        conditions.append(str(of_name.compile(engine, compile_kwargs={"literal_binds": True})))
    return " OR ".join(conditions)


def stored_searches(engine: Engine) -> list[str]:
    """Return the names of the files whose searches have trials, in order."""
    with translated_errors(engine.url), engine.connect() as connection:
        searches = connection.execute(select(trials.c.search).distinct()).scalars()
        return sorted({search.partition(": ")[0] for search in searches})


def begins(column: Column[str], text: str) -> ColumnElement[bool]:
    """Return a condition that a column begins with a text; unlike LIKE, it tells upper from lower
    case in SQLite.
    """
    return func.substr(column, 1, len(text)) == text


def mean_value(
    keys: Sequence[str], ends: Mapping[str, RunEnd], *, skip_diverged: bool
) -> float | None:
    """Return the mean over runs; None if one of them has no result, or has diverged and is to be
    skipped.
    """
    of_keys = [ends.get(key) for key in keys]
    if any(
        end is None or end.value is None or (skip_diverged and end.status == "diverged")
        for end in of_keys
    ):
        return None
    return sum(end.value for end in of_keys if end and end.value is not None) / len(of_keys)


def _slices(keys: Sequence[str]) -> list[Sequence[str]]:
    return [keys[start : start + MOST_KEYS] for start in range(0, len(keys), MOST_KEYS)]
