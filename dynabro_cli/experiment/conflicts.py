"""Problems between the parts and numbers of a run, one line each."""

from __future__ import annotations

from typing import Any

from dynabro_cli.components.aggregators._api import Aggregator
from dynabro_cli.components.attacks._api import Attack
from dynabro_cli.components.methods._api import GatheringMethod, JudgingMethod, Method, senders
from dynabro_cli.components.partitions._api import server_samples
from dynabro_cli.components.tasks._api import Task
from dynabro_cli.core.registration import Component, format_value
from dynabro_cli.experiment.complete import CompleteSpec, workers_samples

ENTRIES = {
    "gradient": "gradients",
    "computation": "single gradient computations",
    "message": "messages",
    "state": "states",
    "data": "data",
}
"""Targets of an attack, by its entry, in words."""
MOST_SAMPLES = 2**62
"""Largest number of samples of all workers in a run: the column ``samples`` counts to 2^63 - 1, and
the last round may exceed the budget.
"""


def conflicts(spec: CompleteSpec, task: Task, data: Component[Any] | None) -> list[str]:
    """Return the problems between the numbers of a completed spec, one line each."""
    lines = []
    workers, byzantine = spec.workers, spec.byzantine
    if 2 * byzantine >= workers:
        most = (workers - 1) // 2
        lines.append(
            f"byzantine={byzantine} of workers={workers} is not legal: 2f < m must hold, so f "
            f"is at most {most}. "
            f"Try: --byzantine {most} (bernoulli switching may exceed it in a round, by its "
            "delta_max)"
        )
    if spec.budget * workers * spec.batch_size > MOST_SAMPLES:
        lines.append(
            f"budget={spec.budget} with workers={workers} and batch_size={spec.batch_size} "
            f"takes more than {MOST_SAMPLES} "
            f"samples. Try: --budget {max(1, MOST_SAMPLES // (workers * spec.batch_size))}, or "
            "a smaller --batch-size"
        )
    if spec.lr_drop != "none" and spec.lr_rule == "adagrad-norm":
        lines.append(
            f"lr_rule=adagrad-norm sets the learning rate itself, and lr_drop={spec.lr_drop}. "
            "Try: --lr-drop none"
        )
    if spec.precision != "fp32" and not task.trains_model:
        lines.append(
            f"task {spec.task!r} is computed in double precision, and "
            f"precision={spec.precision}. Try: --precision fp32"
        )
    return lines + _sample_conflicts(spec, task, data)


def _sample_conflicts(spec: CompleteSpec, task: Task, data: Component[Any] | None) -> list[str]:
    """Return the problems between a completed spec and the available samples, one line each."""
    if not task.trains_model:
        lines = []
        if data is not None and data.name != "iid":
            lines.append(
                f"task {spec.task!r} has no samples to share out, and data={spec.data}. Try: "
                "--data iid"
            )
        elif server_samples(spec.data):
            lines.append(
                f"task {spec.task!r} has no samples for the server, and data={spec.data}. Try: "
                "--data iid"
            )
        if spec.validation:
            shown = format_value(spec.validation)
            lines.append(
                f"task {spec.task!r} has no samples to hold out, and validation={shown}. Try: "
                "--validation 0"
            )
        return lines
    if task.train_size is None:
        return []
    workers, samples = spec.workers, workers_samples(spec, task.train_size)
    rest = f" that validation={format_value(spec.validation)} leaves" if spec.validation else ""
    if server := server_samples(spec.data):
        rest = f"{rest} and server={server} leave" if rest else f" that server={server} leaves"
    if spec.batch_size > samples:
        usual = min(task.defaults.batch_size, samples)
        typed = (
            f"--batch-size {usual}"
            if usual
            else "a smaller server="
            if server
            else "a smaller --validation"
        )
        return [
            (
                f"batch_size={spec.batch_size} is larger than the {samples} training samples of "
                f"{spec.task!r}{rest}. Try: {typed}"
            )
        ]
    if data is not None and data.name != "iid" and workers > samples:
        return [
            (
                f"data={spec.data} cannot share {samples} training samples{rest} among "
                f"workers={workers}. Try: fewer --workers"
            )
        ]
    return []


def need_all(spec: CompleteSpec, method: Method, rule: Aggregator, attack: Attack) -> list[str]:
    """Return the parts that need an answer of every worker in every round, one line each."""
    workers = senders(method)
    by_history = (
        (workers.remembers and not workers.by_row)
        or isinstance(method, JudgingMethod)
        or (isinstance(method, GatheringMethod) and method.cohort is not None)
    )
    needing = [
        (f"method {spec.method!r}", by_history),
        (f"aggregator {spec.aggregator!r}", rule.by_number and not workers.delayed),
        (f"attack {spec.attack!r}", attack.by_number),
    ]
    why = (
        "needs every worker in every round, and "
        f"participation={format_value(spec.participation)}. Try: --participation 1"
    )
    return [f"{name} {why}" for name, needs in needing if needs]


def needs_server(spec: CompleteSpec, task: Task, rule: Aggregator) -> list[str]:
    """Return the problem of a rule that needs trusted data if the server has no samples; an
    objective always has a gradient.
    """
    if not rule.needs_server or not task.trains_model or server_samples(spec.data):
        return []
    joined = "," if ":" in spec.data else ":"
    needs = (
        f"aggregator {spec.aggregator!r} needs samples at the server, and data={spec.data} "
        "leaves it none"
    )
    return [f"{needs}. Try: --data {spec.data}{joined}server=100"]


def attack_conflicts(
    task: str, entry: str | None, name: str, attack: Attack, *, has_labels: bool
) -> list[str]:
    """Return the problems between an attack, its entry and the task, one line each."""
    lines = []
    if entry is not None and entry not in attack.entries:
        acts = " or ".join(ENTRIES[legal] for legal in attack.entries)
        lines.append(
            f"attack {name!r} acts on {acts}, and attack_entry={entry}. "
            f"Try: no --attack-entry, or --attack-entry {attack.entries[0]}"
        )
    if attack.labels is not None and not has_labels:
        lines.append(
            f"attack {name!r} changes labels, and task {task!r} has none. Try: another "
            "--attack or --task"
        )
    return lines
