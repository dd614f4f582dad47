"""MLflow: a run in a tracking store, in an experiment for each sweep."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dynabro_cli.runs.trackers import Described, Points, legal_name

NAMES = r"[^\w. :-]|^(?=\.)|^$", 250
"""Characters that a name of MLflow may not have, and its length; dots alone would be a folder."""
AT_ONCE = 100
"""Largest number of parameters in a call; a tenth of the largest number of metrics."""


class _Log:
    def __init__(self, client: Any, number: str, last: dict[str, int]) -> None:
        self._client, self._number, self._last = client, number, last
        self._legal: dict[str, str] = {}

    def points(self, points: Points, at: float) -> None:
        named = [
            (legal_name(name, self._legal, *NAMES), value, budget)
            for budget, numbers in points
            for name, value in sorted(numbers.items())
        ]
        self._write([point for point in named if point[2] > self._last.get(point[0], -1)], at)

    def end(self, final: Mapping[str, float], at: float, status: str) -> None:
        self._write([(name, value, 0) for name, value in final.items()], at)
        self._client.set_terminated(self._number, status, int(1000 * at))

    def _write(self, numbers: list[tuple[str, float, int]], at: float) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, value, int(1000 * at), step) for name, value, step in numbers]
        for start in range(0, len(metrics), 10 * AT_ONCE):
            self._client.log_batch(self._number, metrics=metrics[start : start + 10 * AT_ONCE])


def begin(
    run: Described, place: str, *, resumed: bool = False, artifacts: str | None = None
) -> _Log:
    """Open a run in the store ``PLACE``.

    A resumed run goes on after the last step of each of its metrics; otherwise, earlier runs of
    this name that have not ended are closed.

    Args:
        run: The run.
        place: The store's URI.
        resumed: True if the run resumes.
        artifacts: URI of the artifacts of a new experiment; None for the store's own.
    """
    # its seven tries take longer than a call may, and their reason would be lost
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    from mlflow import MlflowClient
    from mlflow.entities import Param
    from mlflow.exceptions import MlflowException

    client = MlflowClient(place)
    try:
        experiment = client.create_experiment(run.group, artifacts)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        experiment = client.get_experiment_by_name(run.group).experiment_id
    earlier = client.search_runs(
        [experiment],
        f"attributes.run_name = '{run.name}'",
        order_by=["attributes.start_time DESC"],
    )
    if resumed and earlier:
        number = earlier[0].info.run_id
        client.update_run(number, "RUNNING")
        steps = {
            name: max(metric.step for metric in client.get_metric_history(number, name))
            for name in earlier[0].data.metrics
        }
        return _Log(client, number, steps)
    for other in earlier:
        if other.info.status == "RUNNING":
            client.set_terminated(other.info.run_id, "KILLED")
    tags = {"mlflow.note.content": run.note} | dict.fromkeys(run.tags, "true")
    number = client.create_run(experiment, int(1000 * run.started), tags, run.name).info.run_id
    parameters = [Param(name, str(value)) for name, value in run.fields.items()]
    for start in range(0, len(parameters), AT_ONCE):
        client.log_batch(number, params=parameters[start : start + AT_ONCE])
    return _Log(client, number, {})
