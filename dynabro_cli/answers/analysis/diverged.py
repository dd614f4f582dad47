"""The numbers that a run that diverged counts as, wherever runs are averaged, tested, ranked or
drawn.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from dynabro_cli.answers.analysis.metrics import METRIC_PREFIX, METRICS
from dynabro_cli.core.registration.digests import DATA, parse

if TYPE_CHECKING:
    import pandas as pd

DIVERGED = "diverged"
CROSS = "\N{MULTIPLICATION SIGN}"
SCORED = ("final_accuracy", "validation_accuracy")


def counted_as(column: str, task: str, model: str | None, code_digests: str | None) -> float:
    """Return the number of a diverged run in a column of ``runs`` or ``evaluations``.

    An accuracy is 1/classes, as of a server that always gives one answer: a run that blows up may
    end as diverged on one machine, and with a constant answer on another. A loss or gap is
    infinite. NaN for other columns, for a column that runs of the task do not have, and if the
    number of classes is unknown (``experiment.data.classes_at_hand``).

    Args:
        column: The column.
        task: The run's task.
        model: The run's model; None for an objective, which has a gap, but neither accuracy nor
            loss.
        code_digests: The run's column of this name.
    """
    if column == "final_gap":
        return math.nan if model else math.inf
    if column in ("final_loss", "validation_loss"):
        return math.inf if model else math.nan
    if column not in SCORED or not model:
        return math.nan
    classes = _classes(task, (parse(code_digests) or {}).get(f"{DATA}{task}"))
    return 1 / classes if classes else math.nan


@functools.cache
def _classes(task: str, digest: str | None) -> int | None:
    # imported late, because only data that are read need torch
    from dynabro_cli.experiment.data import classes_at_hand

    return classes_at_hand(task, digest)


def counted(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs, as of ``Results.runs``, in which those that diverged have the numbers that they
    count as.
    """
    diverged = runs["status"] == DIVERGED
    if not diverged.any():
        return runs
    names = [metric.final for metric in METRICS.values()]
    names += [name for name in runs if name.startswith(METRIC_PREFIX)]
    lost: Any = runs.loc[diverged, ["task", "model", "code_digests"]].astype(object)
    lost = lost.where(lost.notna(), None)
    numbers = {
        name: [counted_as(name, *run) for run in lost.itertuples(index=False)]
        for name in names
        if name in runs
    }
    runs = runs.copy()
    for name, values in numbers.items():
        runs.loc[diverged, name] = values
    return runs


def share(diverged: float, count: float) -> str:
    """Return ``3 of 5 diverged``; empty if no run did."""
    return f"{diverged:.0f} of {count:.0f} diverged" if diverged else ""


def mark(cell: Any, before: str = " ") -> str:
    """Return ``share`` of a cell, with ``diverged`` and ``n``, as a mark for narrow places."""
    return f"{before}{CROSS}{cell.diverged:.0f}/{cell.n:.0f}" if cell.diverged else ""


def mark_note(diverged: float) -> str:
    """Return the explanation of ``mark``; empty if no run diverged."""
    return f"{CROSS}3/5: 3 of 5 runs diverged, in all {diverged:.0f}" if diverged else ""
