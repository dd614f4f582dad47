"""Stored runs as files of other tools, by the writers of ``runs/trackers/``."""

from __future__ import annotations

import contextlib
import importlib
import logging
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dynabro_cli.answers.analysis.diverged import DIVERGED, counted_as
from dynabro_cli.core.errors import (
    CannotWriteError,
    DatabaseError,
    NotFoundError,
    StorageError,
    first_line,
)
from dynabro_cli.core.limits import SWEEP_NAME
from dynabro_cli.experiment.key import KEY_DIGITS
from dynabro_cli.runs.store.care.outputs import part_of
from dynabro_cli.runs.store.read.frames import load
from dynabro_cli.runs.store.read.queries import query, sweeps_condition
from dynabro_cli.runs.store.tables import HAS_RESULT
from dynabro_cli.runs.store.write.origin import read_tags
from dynabro_cli.runs.trackers import CURVES, Described, Points, check_package, fields_of, finite

TARGETS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb-offline": "wandb"}
"""Tools, and the package that each tool needs; its writer has the package's name."""
PLACES: dict[str, Callable[[Path, Path], dict[str, str]]] = {
    "tensorboard": lambda part, _: {"place": str(part)},
    "mlflow": lambda part, out: {
        "place": f"sqlite:///{(part / 'mlflow.db').resolve()}",
        "artifacts": (out / "artifacts").resolve().as_uri(),
    },
    "wandb": lambda part, _: {"place": "dynabro", "offline": str(part)},
}
"""Arguments of a tool's ``begin``, from the folder that is written and its later place."""
FINAL = ("final_accuracy", "final_loss", "final_gap")
NO_ROOM = ("No space left", "disk is full", "disk I/O", "quota exceeded")
"""Words of errors of a full disk."""


class Exported(NamedTuple):
    """A run for another tool.

    Attributes:
        run: The run; its name is its id and the beginning of its key.
        ended: End time, in seconds since 1970.
        points: Its evaluations.
        final: Final scores; of a run that diverged what it counts as, unless it is infinite.
    """

    run: Described
    ended: float
    points: Points
    final: dict[str, float]


def export(to: str, db: str, out: Path, where: str | None, sweeps: Sequence[str] | None) -> int:
    """Write the runs with a result into a folder; return their number.

    Raises:
        SpecError: The tool is unknown, or its package is not installed.
        NotFoundError: No such run has a result.
        DatabaseError: The name of a sweep, or a key, is not a name of a folder.
        CannotWriteError: The folder exists and is not empty, or cannot be written.
        StorageError: The disk is full.
    """
    package = TARGETS[to]
    check_package(package, f"to={to}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CannotWriteError(f"{out} exists, and is not an empty folder. Try: another --out")
    runs = list(_runs(db, where, sweeps))
    if not runs:
        raise NotFoundError(
            "no such run has a result. Try: dynabro runs, which lists the stored runs"
        )
    try:
        place = out.resolve()
        place.parent.mkdir(parents=True, exist_ok=True)
        # beside its place, and renamed when it is complete: a part of it would block the next try
        with tempfile.TemporaryDirectory(
            prefix=part_of(place).name, dir=place.parent, ignore_cleanup_errors=True
        ) as folder:
            part = Path(folder, out.name)
            with _errors_of_threads():
                _write(runs, package, part, out)
            part.replace(out)
    except Exception as error:  # the tools have various errors
        reason = getattr(error, "strerror", None) or first_line(error) or type(error).__name__
        if any(words in str(error) for words in NO_ROOM):
            raise StorageError(f"{out} cannot be written ({reason}); make room") from error
        raise CannotWriteError(
            f"{out} cannot be written ({reason}). Try: another --out, or another --to"
        ) from error
    return len(runs)


@contextlib.contextmanager
def _errors_of_threads() -> Iterator[None]:
    """Raise the first error of a thread that writes within the context, instead of printing it, and
    print nothing if a tool's log cannot be written.
    """
    errors: list[BaseException | None] = []
    before, threading.excepthook = threading.excepthook, lambda it: errors.append(it.exc_value)
    logged, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        yield
    except Exception:
        if not errors:
            raise
    finally:
        threading.excepthook, logging.raiseExceptions = before, logged
    if errors and errors[0] is not None:
        raise errors[0]


def _write(runs: Sequence[Exported], package: str, part: Path, out: Path) -> None:
    """Write runs into the folder ``part``, which becomes ``out``."""
    part.mkdir()
    tool = importlib.import_module(f"dynabro_cli.runs.trackers.{package}")
    for run in runs:
        log = tool.begin(run.run, **PLACES[package](part, out))
        log.points(run.points, run.ended)
        log.end(run.final, run.ended, "FINISHED")


def _runs(db: str, where: str | None, sweeps: Sequence[str] | None) -> Iterator[Exported]:
    from dynabro_cli.runs.store.open.engine import open_read_only

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
                finite(
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
            Described(
                name,
                group,
                fields_of(row),
                read_tags(row.get("tags")),
                row.get("note", ""),
                row["started_at"].timestamp(),
            ),
            row["finished_at"].timestamp(),
            curve,
            finite(
                {
                    name: counted_as(name, row["task"], row.get("model"), row.get("code_digests"))
                    if row["status"] == DIVERGED
                    else row.get(name)
                    for name in FINAL
                }
            ),
        )
