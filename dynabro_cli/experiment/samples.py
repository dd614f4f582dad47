"""Training samples: how many are held out, and whether what is left is enough for a run."""

from __future__ import annotations

from typing import Any

from dynabro_cli.components import Component, format_value
from dynabro_cli.experiment.complete import CompleteSpec
from dynabro_cli.tasks._api import Task


def held_out(share: float, samples: int) -> int:
    """How many of so many samples are held out: ``share`` of them, rounded, and one at least where it is not 0."""
    return max(1, round(share * samples)) if share else 0


def samples_each(spec: CompleteSpec, task: Task) -> int | None:
    """How many training samples a worker has, on average where each has its own; None where it is not known."""
    if task.train_size is None:
        return None
    left = task.train_size - held_out(spec.validation, task.train_size)
    return left if spec.data.partition(":")[0] == "iid" else -(-left // spec.workers)


def sample_conflicts(spec: CompleteSpec, task: Task, data: Component[Any] | None) -> list[str]:
    """What is wrong between a completed spec and the samples that there are, a line each."""
    if not task.trains_model:
        found = []
        if data is not None and data.name != "iid":
            found.append(f"task {spec.task!r} has no samples to share out, and data={spec.data}; type --data iid")
        if spec.validation:
            shown = format_value(spec.validation)
            found.append(f"task {spec.task!r} has no samples to hold out, and validation={shown}; type --validation 0")
        return found
    if task.train_size is None:
        return []
    workers, left = spec.workers, task.train_size - held_out(spec.validation, task.train_size)
    rest = f" that validation={format_value(spec.validation)} leaves" if spec.validation else ""
    if spec.batch_size > left:
        usual = min(task.defaults.batch_size, left)
        typed = f"--batch-size {usual}" if usual else "a smaller --validation"
        return [f"batch_size={spec.batch_size} is larger than the {left} training samples of {spec.task!r}{rest}; type {typed}"]
    if data is not None and data.name != "iid" and workers > left:
        return [f"data={spec.data} cannot share {left} training samples{rest} among workers={workers}; type fewer --workers"]
    return []
