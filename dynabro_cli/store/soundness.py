"""Checks of stored runs: the types of their values, their keys, and the digests of the rows of runs with a result.

A few statements over whole tables check everything, so that a million rounds take seconds.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, DateTime, text

from dynabro_cli.experiment.key import ADDED_LATER, run_key
from dynabro_cli.experiment.spec import CHAIN, COMPONENTS, fields
from dynabro_cli.store import row_digests
from dynabro_cli.store.claims import ENDED, RERUN_SUFFIX
from dynabro_cli.store.tables import STATUSES, runs
from dynabro_cli.store.value_types import moment, of_another_type, sane_row

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
NUMBERS = re.compile(r"\[([1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*)?\]")
"""Numbers of workers, as the recorder writes them."""
SCALARS = tuple(name for name, one in fields().items() if one.component is None)
SINGLE = tuple(name for name in COMPONENTS if name != CHAIN)
TIMES = tuple(column.name for column in runs.c if isinstance(column.type, DateTime))
_HISTOGRAMS = """
    SELECT runs.id, runs.rounds, COALESCE(SUM(c.rounds), 0) AS counted
    FROM runs LEFT JOIN byzantine_counts AS c ON c.run_id = runs.id WHERE runs.rounds_every > 1
    GROUP BY runs.id, runs.rounds HAVING COALESCE(SUM(c.rounds), 0) <> runs.rounds
"""


def unsound_runs(connection: Connection) -> dict[int, list[str]]:
    """Return the problems of each damaged run by its id; no problem quotes the database.

    Args:
        connection: A connection with one snapshot.
    """
    found: defaultdict[int, list[str]] = defaultdict(list)
    for table, run_id in ((runs, "id"), *((table, "run_id") for table in row_digests.OF_RUNS)):
        for number, column in connection.execute(text(of_another_type(table, run_id, connection.dialect.name))):
            if isinstance(number, int):  # a row without a run is reported elsewhere
                found[number].append(f"a value of {table.name}.{column} is of another type, or too large")
    sane = text(f"SELECT {', '.join(runs.c.keys())} FROM runs WHERE {sane_row(connection.dialect.name)}")
    for run in connection.execute(sane).mappings():
        problems = of_row(dict(run))
        if problems:
            found[run["id"]] += problems
    for number, rounds, counted in connection.execute(text(_HISTOGRAMS)):
        if number not in found:  # otherwise a better reason is known
            found[number].append(f"byzantine_counts has {counted} of its {rounds} rounds")
    for number, problem in row_digests.changed(connection).items():
        if number not in found:
            found[number].append(problem)
    return dict(found)


def spec_of(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the spec of a run whose row agrees with itself; None if it does not, or if a component of the spec has no name.

    Args:
        run: The run's columns of the table ``runs``.
    """
    if of_row(run):
        return None
    spec: dict[str, Any] = json.loads(run["spec"])
    named = (spec.get(name) for name in ("method", "aggregator", "attack", "switching"))
    return spec if all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in named) else None


def of_row(run: Mapping[str, Any]) -> list[str]:
    """Return the problems of a single row of ``runs``: its status, its times, and the key of its spec."""
    problems = [] if run["status"] in STATUSES else ["unknown status"]
    problems += [f"{name} is not a valid timestamp" for name in TIMES if run[name] is not None and moment(run[name]) is None]
    if run["status"] in ENDED and run["run_key"].endswith(RERUN_SUFFIX):
        problems.append(f"its key ends in {RERUN_SUFFIX}, though it is complete")
    return problems + _of_key(run)


def _of_key(run: Mapping[str, Any]) -> list[str]:
    """Return the problems of a run's key, and of the columns that repeat its spec."""
    try:
        spec, versions = json.loads(run["spec"]), json.loads(run["versions"])
        if not isinstance(spec, dict) or not isinstance(versions, dict):
            return ["its spec or versions are not valid JSON of a run"]
        expected = run_key(spec)
    except (ValueError, RecursionError):
        return ["its spec or versions are not valid JSON of a run"]
    if run["run_key"].removesuffix(RERUN_SUFFIX) != expected:
        return ["its key does not belong to its spec"]
    meant = ADDED_LATER | spec
    wrong = [name for name in SCALARS if name in meant and meant[name] != run[name]]
    wrong += [name for name in SINGLE if name in meant and not _names(meant[name], run[name])]
    return [f"its columns do not agree with its spec: {', '.join(wrong)}"] if wrong else []


def _names(mapping: Any, column: str | None) -> bool:
    """Return True if a column has the component of a spec, whose parameters can be written in several ways.

    In a spec, ``image-folder:name=pets`` is named pets: its parameter replaced the component's name, and keys depend on it.
    """
    name = mapping.get("name") if isinstance(mapping, Mapping) else mapping
    if column is None:
        return name is None
    component, _, parameters = column.partition(":")
    return name == component or f"name={name}" in parameters.split(",")
