"""Stored results as pandas data frames, for notebooks."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dynabro_cli.experiment.comparison import compare

if TYPE_CHECKING:
    import pandas as pd


class Frames(NamedTuple):
    """Stored results.

    Attributes:
        runs: A row for each run: the columns of the table ``runs`` with times as dates in UTC,
            ``rule`` (the aggregator with its chain, such as ``nnm+cwtm``), and a column for each
            parameter of a component, such as ``method.beta``. Parameters at their default are
            included.
        evaluations: A row for each evaluation; ``run_id`` is the run's id.
    """

    runs: pd.DataFrame
    evaluations: pd.DataFrame


def load(
    db: str | Path = "results.db",
    where: str | None = None,
    *,
    sweep: str | Sequence[str] | None = None,
) -> Frames:
    """Read stored runs and their evaluations; no torch and no component is needed.

    A warning says if the runs were made with code or data that differ from the current ones, or
    with several versions of the data of a task.

    Args:
        db: A file, or an SQLAlchemy URL.
        where: An SQL condition on the columns of ``runs``.
        sweep: The name of a stored sweep, or several names: only its runs.

    Raises:
        NotFoundError: There is no such database, or no such sweep in it.
        DatabaseError: It is not a dynabro database.
        SpecError: The condition is not valid.
    """
    return read(db, where, sweep)


def read(
    db: str | Path,
    where: str | None = None,
    sweep: str | Sequence[str] | None = None,
    *,
    folder: Path | None = None,
    advice: str = "",
) -> Frames:
    """Do what ``load`` does, for a function that the user calls; the warning has the user's line.

    Args:
        db: As in ``load``.
        where: As in ``load``.
        sweep: As in ``load``.
        folder: The folder of data sets; None for the usual one.
        advice: What to type if code or data have changed.
    """
    import pandas as pd

    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.queries import query, sweeps_condition
    from dynabro_cli.runs.store.tables import TIMES
    from dynabro_cli.runs.store.views import RULE

    engine = open_read_only(str(db))
    named = sweeps_condition(engine, where, [sweep] if isinstance(sweep, str) else sweep)
    condition = "" if named is None else f"WHERE {named}"
    runs = query(engine, f"SELECT *, {RULE} FROM runs {condition} ORDER BY id").frame()
    code = compare(((text, 1) for text in runs["code_digests"]), folder)
    if lines := code.lines(advice):
        warnings.warn("; ".join(lines), stacklevel=3)
    for name in TIMES:
        runs[name] = pd.to_datetime(runs[name], utc=True, errors="coerce", format="ISO8601")
    parameters = pd.DataFrame([parameters_of(text) for text in runs["spec"]], index=runs.index)
    chosen = f"run_id IN (SELECT id FROM runs {condition})"
    evaluations = query(engine, f"SELECT * FROM evaluations WHERE {chosen} ORDER BY run_id, round")
    return Frames(runs.join(parameters), evaluations.frame())


def parameters_of(spec: str) -> dict[str, Any]:
    """Return the parameters of a run's components, as ``field.parameter``; empty for a spec that
    cannot be read.
    """
    try:
        fields = json.loads(spec)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(fields, dict):
        return {}
    parameters: dict[str, Any] = {}
    for field, value in fields.items():
        stages = value if isinstance(value, list) else [value]
        for place, stage in enumerate(stages):
            if isinstance(stage, dict):
                prefix = field if len(stages) == 1 else f"{field}.{place + 1}"
                parameters |= {
                    f"{prefix}.{name}": given for name, given in stage.items() if name != "name"
                }
    return parameters
