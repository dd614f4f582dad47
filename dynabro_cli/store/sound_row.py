"""Checks of one row of ``runs``: types, ranges, the key of its spec, and columns that repeat the spec."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import DateTime

from dynabro_cli.components import ParameterInfo
from dynabro_cli.components.digests import is_earlier, parse
from dynabro_cli.experiment.key import ADDED_LATER, run_key
from dynabro_cli.experiment.spec import CHAIN, COMPONENTS, fields
from dynabro_cli.store.claims import ENDED, RERUN_SUFFIX
from dynabro_cli.store.tables import STATUSES, runs
from dynabro_cli.store.value_types import moment

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
SCALARS = {name: one for name, one in fields().items() if one.component is None}
TIMES = tuple(column.name for column in runs.c if isinstance(column.type, DateTime))
SINGLE = tuple(name for name in COMPONENTS if name != CHAIN)


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
    """Return the problems of a single row of ``runs``."""
    problems = []
    key, done, status = run["run_key"], run["status"] in ENDED, run["status"]
    if status not in STATUSES:
        problems.append("unknown status")
    if any(isinstance(value, str) and name != "error" and CONTROL.search(value) for name, value in run.items()):
        problems.append("a text column contains control characters")
    problems += [f"{name} is not a valid timestamp" for name in TIMES if run[name] is not None and moment(run[name]) is None]
    problems += [f"{name} is out of range" for name, info in SCALARS.items() if not _is_legal(info, run[name])]
    problems += _of_key(run)
    if run["code_digests"] is not None and parse(run["code_digests"]) is None and not is_earlier(run["code_digests"]):
        problems.append("code_digests is not a JSON object of digests")
    if done and key.endswith(RERUN_SUFFIX):
        problems.append(f"its key ends in {RERUN_SUFFIX}, though it is complete")
    if done and run["checkpoint"] is not None:
        problems.append("it has ended, but has a checkpoint")
    if status != "running" and run["owner"] is not None:
        problems.append("it is not in progress, but has an owner")
    if status == "finished" and run["budget_spent"] < run["budget"]:
        problems.append(f"it is finished, but spent {run['budget_spent']} of {run['budget']} computations")
    return problems


def _is_legal(info: ParameterInfo, value: Any) -> bool:
    try:
        info.check(value)
    except ValueError:
        return False
    return True


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
