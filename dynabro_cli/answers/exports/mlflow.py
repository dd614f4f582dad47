"""MLflow: a tracking store in a folder, with an experiment for each sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynabro_cli.answers.exports import Exported, legal_names

NAMES = r"[^\w. :-]|^(?=\.)|^$", 250
"""Characters that a name of MLflow may not have, and its length; dots alone would be a folder."""
AT_ONCE = 100
"""Largest number of parameters in a call; a tenth of the largest number of metrics."""


def write(runs: Sequence[Exported], part: Path, out: Path) -> None:
    """Write an SQLite store ``OUT/mlflow.db``; the step is the budget spent.

    Args:
        runs: The runs.
        part: Where ``OUT`` is written.
        out: Where it is afterwards.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    part.mkdir()
    client = MlflowClient(f"sqlite:///{(part / 'mlflow.db').resolve()}")
    legal = legal_names((name for run in runs for _, point in run.points for name in point), *NAMES)
    experiments = {
        group: client.create_experiment(group, (out / "artifacts").resolve().as_uri())
        for group in dict.fromkeys(run.group for run in runs)
    }
    for run in runs:
        began, ended = int(1000 * run.started), int(1000 * run.ended)
        tags = {"mlflow.note.content": run.note} | dict.fromkeys(run.tags, "true")
        made = client.create_run(experiments[run.group], began, tags, run.name).info.run_id
        parameters = [Param(name, str(value)) for name, value in run.fields.items()]
        numbers = [
            Metric(legal[name], value, ended, budget)
            for budget, point in run.points
            for name, value in point.items()
        ]
        numbers += [Metric(name, value, ended, 0) for name, value in run.final.items()]
        for start in range(0, len(parameters), AT_ONCE):
            client.log_batch(made, params=parameters[start : start + AT_ONCE])
        for start in range(0, len(numbers), 10 * AT_ONCE):
            client.log_batch(made, metrics=numbers[start : start + 10 * AT_ONCE])
        client.set_terminated(made, "FINISHED", ended)
