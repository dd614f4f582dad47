"""Checks of ``worker_labels``: number of training samples by worker and label."""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, text

_LABELS = """
    SELECT run_id, COUNT(DISTINCT worker) AS workers, MIN(worker) AS first, MAX(worker) AS last, MIN(label) AS least,
           MIN(count) AS fewest
    FROM worker_labels GROUP BY run_id
"""


def counted_labels(connection: Connection) -> dict[int, RowMapping]:
    """Return one summary row per run, by its id."""
    return {row["run_id"]: row for row in connection.execute(text(_LABELS)).mappings()}


def of_labels(run: RowMapping, labels: RowMapping | None) -> list[str]:
    """Return the problems of a run's samples, which are stored unless every worker has all of them.

    A run that failed before it had data has no rows.
    """
    if run["data"] == "iid":
        return [] if labels is None else ["worker_labels has rows for this run, but data is iid"]
    if labels is None:
        return ["worker_labels has no row for this run, but data is not iid"] if run["rounds"] else []
    if (labels["workers"], labels["first"], labels["last"]) != (run["workers"], 0, run["workers"] - 1):
        return [f"worker_labels has {labels['workers']} of its {run['workers']} workers, {labels['first']} to {labels['last']}"]
    wrong = labels["least"] < 0 or labels["fewest"] < 1
    return ["worker_labels has a label below 0, or a count below 1"] if wrong else []
