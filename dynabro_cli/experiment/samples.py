"""Training samples: the held-out share, and checks that the rest is enough for a run."""

from __future__ import annotations

from typing import Any

from dynabro_cli.components import Component, format_value
from dynabro_cli.experiment.complete import CompleteSpec
from dynabro_cli.tasks._api import Task


def held_out(share: float, samples: int) -> int:
    """Return the number of held-out samples: ``share`` of all, rounded, at least one if it is not 0."""
    return max(1, round(share * samples)) if share else 0


def samples_each(spec: CompleteSpec, task: Task) -> int | None:
    """Return the number of training samples of a worker, on average if each has its own; None if it is unknown."""
    if task.train_size is None:
        return None
    left = task.train_size - held_out(spec.validation, task.train_size)
    return left if spec.data.partition(":")[0] == "iid" else -(-left // spec.workers)


def sample_conflicts(spec: CompleteSpec, task: Task, data: Component[Any] | None) -> list[str]:
    """Return the problems between a completed spec and the available samples, one line each."""
    if not task.trains_model:
        found = []
        if data is not None and data.name != "iid":
            found.append(f"task {spec.task!r} has no samples to share out, and data={spec.data}. Try: --data iid")
        if spec.validation:
            shown = format_value(spec.validation)
            found.append(f"task {spec.task!r} has no samples to hold out, and validation={shown}. Try: --validation 0")
        return found
    if task.train_size is None:
        return []
    workers, left = spec.workers, task.train_size - held_out(spec.validation, task.train_size)
    rest = f" that validation={format_value(spec.validation)} leaves" if spec.validation else ""
    if spec.batch_size > left:
        usual = min(task.defaults.batch_size, left)
        typed = f"--batch-size {usual}" if usual else "a smaller --validation"
        return [f"batch_size={spec.batch_size} is larger than the {left} training samples of {spec.task!r}{rest}. Try: {typed}"]
    if data is not None and data.name != "iid" and workers > left:
        return [f"data={spec.data} cannot share {left} training samples{rest} among workers={workers}. Try: fewer --workers"]
    return []
