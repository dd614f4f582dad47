"""Stored runs as files of other tools. Each tool has a module here, whose ``write`` uses the tool's
own writer.
"""

from __future__ import annotations

import importlib
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dynabro_cli.analysis.diverged import DIVERGED, counted_as
from dynabro_cli.errors import CannotWriteError, DatabaseError, NotFoundError, SpecError, first_line
from dynabro_cli.experiment.spec import fields
from dynabro_cli.limits import SWEEP_NAME
from dynabro_cli.store.origin import read_tags
from dynabro_cli.store.read.frames import load
from dynabro_cli.store.read.queries import query, sweeps_condition
from dynabro_cli.store.tables import HAS_RESULT

TARGETS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb-offline": "wandb"}
"""Tools, and the package that each tool needs; the module here has the package's name."""
CURVES = (
    "test_accuracy",
    "test_loss",
    "train_loss",
    "gap",
    "validation_accuracy",
    "validation_loss",
)
FINAL = ("final_accuracy", "final_loss", "final_gap")
KEY_DIGITS = 10


class Exported(NamedTuple):
    """A run for another tool.

    Attributes:
        name: Its id and the beginning of its key.
        group: Its sweep; ``runs`` without a sweep.
        fields: Its fields that have a value, ``rule``, and all parameters of its components, such
            as ``method.beta``.
        tags: Tags.
        note: The note, or an empty text.
        started: Start time, in seconds since 1970.
        ended: End time.
        points: For each evaluation, the budget (the step of all tools) and finite numbers by name.
        final: Final scores; of a run that diverged what it counts as, unless it is infinite.
    """

    name: str
    group: str
    fields: dict[str, Any]
    tags: list[str]
    note: str
    started: float
    ended: float
    points: list[tuple[int, dict[str, float]]]
    final: dict[str, float]


def export(to: str, db: str, out: Path, where: str | None, sweeps: Sequence[str] | None) -> int:
    """Write the runs with a result into a folder; return their number.

    Raises:
        SpecError: The tool is unknown, or its package is not installed.
        NotFoundError: No such run has a result.
        DatabaseError: The name of a sweep, or a key, is not a name of a folder.
        CannotWriteError: The folder exists and is not empty, or cannot be written.
    """
    package = TARGETS[to]
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise SpecError(
            f"to={to}: it needs the package {package} ({error}). Try: pip install {package}"
        ) from error
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CannotWriteError(f"{out} exists, and is not an empty folder. Try: another --out")
    runs = list(_runs(db, where, sweeps))
    if not runs:
        raise NotFoundError(
            "no such run has a result. Try: dynabro runs, which lists the stored runs"
        )
    before = out.exists()
    try:
        importlib.import_module(f"dynabro_cli.exports.{package}").write(runs, out)
    except BaseException as error:
        # the folder was empty or missing, and a part of an export would block the next one
        shutil.rmtree(out, ignore_errors=True)
        if before:
            out.mkdir(exist_ok=True)
        if not isinstance(error, Exception):
            raise
        reason = getattr(error, "strerror", None) or first_line(error) or type(error).__name__
        raise CannotWriteError(f"{out} cannot be written ({reason}). Try: another --out") from error
    return len(runs)


def _runs(db: str, where: str | None, sweeps: Sequence[str] | None) -> Iterator[Exported]:
    from dynabro_cli.store.open.engine import open_read_only

    engine = open_read_only(db)
    condition = sweeps_condition(
        engine, f"{HAS_RESULT} AND ({where})" if where else HAS_RESULT, sweeps
    )
    runs, evaluations = load(db, condition)
    chosen = (
        "SELECT run_id, round, name, value FROM metrics WHERE run_id IN (SELECT id FROM "
        f"runs WHERE {condition})"
    )
    metrics: dict[tuple[int, int], dict[str, float]] = {}
    for run_id, round_, name, value in query(engine, chosen).rows:
        metrics.setdefault((run_id, round_), {})[name] = value
    points = dict(list(evaluations.groupby("run_id")))
    for run in runs.to_dict("records"):
        row = {
            str(name): value for name, value in run.items() if value is not None and value == value
        }
        curve = [
            (
                int(evaluation["budget"]),
                _finite(
                    {name: evaluation[name] for name in CURVES}
                    | metrics.get((row["id"], evaluation["round"]), {})
                ),
            )
            for evaluation in points.get(row["id"], evaluations[:0]).to_dict("records")
        ]
        name, group = f"{row['id']}-{row['run_key'][:KEY_DIGITS]}", row.get("sweep", "runs")
        if not all(SWEEP_NAME.fullmatch(text) for text in (name, group)):  # they become folders
            raise DatabaseError(
                f"run {row['id']}: its sweep {group!r}, or its key, is not a name of a folder. "
                "Try: --where"
            )
        yield Exported(
            name,
            group,
            {
                name: value
                for name, value in row.items()
                if name in (*fields(), "rule") or "." in name
            },
            read_tags(row.get("tags")),
            row.get("note", ""),
            row["started_at"].timestamp(),
            row["finished_at"].timestamp(),
            curve,
            _finite(
                {
                    name: counted_as(name, row["task"], row.get("model"), row.get("code_digests"))
                    if row["status"] == DIVERGED
                    else row.get(name)
                    for name in FINAL
                }
            ),
        )


def _finite(values: dict[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }
