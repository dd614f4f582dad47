"""Rows of ``runs`` as they are: their problems, and the spec of a row that has none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dynabro_cli.experiment.key import run_key
from dynabro_cli.runs.store.open.value_types import moment
from dynabro_cli.runs.store.tables import RERUN_SUFFIX, RESULT_STATUSES, STATUSES, TIMES


def spec_of(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the spec of a run whose key belongs to it; None if it does not, or if a component of
    the spec has no name.

    Args:
        run: The run's columns of the table ``runs``.
    """
    if row_problems(run):
        return None
    spec: dict[str, Any] = json.loads(run["spec"])
    named = (spec.get(name) for name in ("method", "aggregator", "attack", "switching"))
    return (
        spec
        if all(isinstance(part, dict) and isinstance(part.get("name"), str) for part in named)
        else None
    )


def row_problems(run: Mapping[str, Any]) -> list[str]:
    """Return the problems of a single row of ``runs``: its status, its times, and the key of its
    spec.
    """
    problems = [] if run["status"] in STATUSES else ["unknown status"]
    problems += [
        f"{name} is not a valid timestamp"
        for name in TIMES
        if run[name] is not None and moment(run[name]) is None
    ]
    if run["status"] in RESULT_STATUSES and run["run_key"].endswith(RERUN_SUFFIX):
        problems.append(f"its key ends in {RERUN_SUFFIX}, though it is complete")
    return problems + _key_problems(run)


def _key_problems(run: Mapping[str, Any]) -> list[str]:
    """Return the problems of a run's key. The columns that repeat its spec are in the digest of its
    rows.
    """
    spec = json_object(run["spec"])
    try:
        expected = None if spec is None else run_key(spec)
    except ValueError:
        expected = None
    if expected is None:
        return ["its spec is not valid JSON of a run"]
    return (
        []
        if run["run_key"].removesuffix(RERUN_SUFFIX) == expected
        else ["its key does not belong to its spec"]
    )


def json_object(stored: object) -> dict[str, Any] | None:
    """Return a JSON object that is stored as text; None if it is not one."""
    try:
        value = json.loads(stored) if isinstance(stored, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
