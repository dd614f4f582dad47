"""Build the parts of a run from a complete spec: each part once, then with the values that it needs
from the others.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from dynabro_cli.components.aggregators._api import Aggregator, AggregatorSetting
from dynabro_cli.components.attacks._api import Attack, AttackSetting
from dynabro_cli.components.methods._api import (
    GatheringMethod,
    JudgingMethod,
    Measured,
    Method,
    MethodSetting,
    senders,
)
from dynabro_cli.components.partitions._api import Partition, PartitionSetting, server_samples
from dynabro_cli.components.pre_aggregators._chain import build_chain, build_stages
from dynabro_cli.components.switching._api import Switching, SwitchingSetting
from dynabro_cli.components.tasks._api import ImageShape, Task
from dynabro_cli.core.errors import Problems, SpecError
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine.cache_folder import cache_folder
from dynabro_cli.core.registration import Component, format_value
from dynabro_cli.experiment.complete import CompleteSpec, answering_count

Components = dict[str, "Component[Any] | None"]
ENTRIES = {
    "gradient": "gradients",
    "computation": "single gradient computations",
    "message": "messages",
    "state": "states",
    "data": "data",
}
"""Targets of an attack, by its entry, in words."""


class Built(NamedTuple):
    """The parts of a run, except its model.

    Attributes:
        task: The task.
        method: The method before ``assemble``.
        aggregator: The rule after its pre-aggregators; ``stages`` has the settings of the
            pre-aggregators and, last, of the rule.
        attack: The attack.
        switching: The identity-switching strategy.
        partition: The distribution of the training set.
        cohort: The same chain, for rounds in which only the method's cohort takes part; None
            without a cohort.
        settings: The settings of the components, by the field, without the task's; None for the
            model of an objective.
    """

    task: Task
    method: Method
    aggregator: Aggregator
    stages: tuple[AggregatorSetting, ...]
    attack: Attack
    switching: Switching
    partition: Partition
    cohort: Aggregator | None
    settings: dict[str, Any]


def held_out(share: float, samples: int) -> int:
    """Return the number of held-out samples: ``share`` of all, rounded; at least one if ``share``
    is not 0.
    """
    return max(1, round(share * samples)) if share else 0


def workers_samples(spec: CompleteSpec, samples: int) -> int:
    """Return the number of training samples that are left for the workers, at least 0."""
    return max(0, samples - held_out(spec.validation, samples) - server_samples(spec.data))


def samples_each(spec: CompleteSpec, task: Task) -> int | None:
    """Return the number of training samples of a worker (the average if they differ); None if it is
    unknown.
    """
    if task.train_size is None:
        return None
    samples = workers_samples(spec, task.train_size)
    return samples if spec.data.partition(":")[0] == "iid" else -(-samples // spec.workers)


def method_setting(spec: CompleteSpec, task: Task) -> MethodSetting:
    """Return the method's first setting; its number of workers is the number that answer."""
    samples, size = samples_each(spec, task), spec.batch_size
    batches = None if samples is None else -(-samples // size)
    return MethodSetting(chain_setting(spec).workers, spec.budget, spec.learning_rate, batches)


def chain_setting(spec: CompleteSpec, threshold: float | None = None) -> AggregatorSetting:
    """Return the setting of the aggregation chain: n workers answer, and f <= (n - 1)/2 of them are
    Byzantine.

    A round's sample may have more Byzantine workers, up to the declared number, and so a Byzantine
    majority.
    """
    count, declared = answering_count(spec.participation, spec.workers), spec.byzantine
    byzantine = declared if count == spec.workers else min(declared, (count - 1) // 2)
    return AggregatorSetting(count, byzantine, threshold, spec.seed)


def rule_setting(spec: CompleteSpec, method: Method) -> AggregatorSetting:
    """Return the aggregation chain's setting under a method: of all workers if the method
    aggregates delayed messages.
    """
    if senders(method).delayed:
        return AggregatorSetting(spec.workers, spec.byzantine, method.threshold, spec.seed)
    return chain_setting(spec, method.threshold)


def attack_setting(spec: CompleteSpec, method: Method, always: int | None = None) -> AttackSetting:
    """Return the setting of the attack for the run and its method."""
    gain = senders(method).first_gain
    return AttackSetting(chain_setting(spec).workers, method.beta, always, spec.seed, gain)


def switching_setting(spec: CompleteSpec, method: Method) -> SwitchingSetting:
    """Return the setting of a switching strategy for the run and its method."""
    return SwitchingSetting(spec.workers, spec.byzantine, spec.seed, method.beta, method.jmax)


def assemble(
    spec: CompleteSpec, method: Method, aggregator: Aggregator, noise: float | None = None
) -> tuple[Method, Aggregator]:
    """Give method and aggregator the values that each needs from the other.

    Args:
        spec: The run.
        method: The method as its factory made it.
        aggregator: The aggregation chain.
        noise: V, once measured.

    Raises:
        SpecError: The parts do not match.
    """
    if method.with_measured is not None:
        method = method.with_measured(Measured(aggregator.kappa, spec.learning_rate, noise))
    return method, at_threshold(aggregator, method)


def at_threshold(aggregator: Aggregator, method: Method) -> Aggregator:
    """Return the aggregator at the method's threshold, if it needs a threshold and the method sets
    one.
    """
    if aggregator.at_threshold is None or method.threshold is None:
        return aggregator
    return aggregator.at_threshold(method.threshold)


def build_method(
    spec: CompleteSpec, rate: float | None, task: Task, parts: Components, problems: Problems
) -> Method | None:
    """Build the method, which other defaults follow from, and check the numbers of the spec.

    Args:
        spec: The run.
        rate: The given learning rate; None if its default may follow from the method.
        task: The task.
        parts: The components; those with problems are None.
        problems: Gets the problems.
    """
    problems.lines += conflicts(spec, task, parts["data"])
    setting = replace(method_setting(spec, task), learning_rate=rate)
    method = parts["method"]
    return None if method is None else problems.attempt(method.build, setting)


def build(
    spec: CompleteSpec,
    entry: str | None,
    task: Task,
    method: Method,
    parts: Components,
    chain: tuple[Component[Any], ...],
) -> Built:
    """Build every component once in its setting.

    Args:
        spec: The run; its ``attack_entry`` is not used.
        entry: The entry of the attack; None for its usual entry.
        task: The task.
        method: The method, as its factory made it.
        parts: The components.
        chain: The pre-aggregators.

    Raises:
        SpecError: The parts do not match each other, the task or the spec; the error lists every
            problem.
    """
    problems = Problems()
    rule, attacker, strategy, data = (
        cast("Component[Any]", parts[name])
        for name in ("aggregator", "attack", "switching", "data")
    )
    aggregator, stages = problems.attempt(
        build_stages, rule, chain, rule_setting(spec, method)
    ) or (None, ())
    fits = (
        aggregator is not None and problems.attempt(assemble, spec, method, aggregator) is not None
    )
    cohort = problems.attempt(_build_cohort, spec, method, rule, chain) if fits else None
    attack: Attack | None = problems.attempt(attacker.build, attack_setting(spec, method))
    if attack is not None:
        problems.lines += _attack_conflicts(
            spec.task, entry, attacker.name, attack, has_labels=task.trains_model
        )
    some_answer = chain_setting(spec).workers < spec.workers
    switches, samples = switching_setting(spec, method), PartitionSetting(spec.workers)
    switching: Switching | None = problems.attempt(strategy.build, switches)
    if switching is not None and switching.follow is not None and spec.clock != "round":
        problems.lines.append(
            f"switching {strategy.name!r} learns once a round, and clock={spec.clock}. Try: "
            "--clock round, or leave it out"
        )
    if some_answer and attack is not None and aggregator is not None and fits:
        problems.lines += _need_all(spec, method, aggregator, attack)
    if aggregator is not None:
        problems.lines += _needs_server(spec, task, aggregator)
    partition: Partition | None = problems.attempt(data.build, samples)
    if parts["model"] is not None and task.shape is not None:
        problems.attempt(_check_model, parts["model"], task.shape)
    if (
        aggregator is None
        or attack is None
        or switching is None
        or partition is None
        or problems.lines
    ):
        raise SpecError(problems.lines)
    always = None if some_answer else switching.always
    settings = {
        "model": task.shape,
        "method": method_setting(spec, task),
        "aggregator": stages[-1],
        "attack": attack_setting(spec, method, always),
        "switching": switches,
        "data": samples,
    }
    return Built(task, method, aggregator, stages, attack, switching, partition, cohort, settings)


def _build_cohort(
    spec: CompleteSpec,
    method: Method,
    aggregator: Component[Any],
    chain: tuple[Component[Any], ...],
) -> Aggregator | None:
    """Build the aggregation chain for C of the m workers, of which floor(C f/m) count as Byzantine.

    Returns:
        The chain; None without a cohort.

    Raises:
        SpecError: The chain is not defined for so few workers.
    """
    if not isinstance(method, GatheringMethod) or method.cohort is None:
        return None
    byzantine = method.cohort * spec.byzantine // spec.workers
    setting = AggregatorSetting(method.cohort, byzantine, method.threshold, spec.seed)
    try:
        return build_chain(aggregator, chain, setting)
    except SpecError as error:
        raise SpecError(
            [f"with C={method.cohort} workers a round: {line}" for line in error.problems]
        ) from None


def _need_all(spec: CompleteSpec, method: Method, rule: Aggregator, attack: Attack) -> list[str]:
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


def _needs_server(spec: CompleteSpec, task: Task, rule: Aggregator) -> list[str]:
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


def _check_model(model: Component[Any], shape: ImageShape) -> None:
    """Raise SpecError if the network does not exist for images of this shape."""
    if model.entry.check is not None:
        model.entry.check(model, shape)
        return
    with torch.device("meta"):
        model.build(shape)


def _attack_conflicts(
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


def data_directory(given: str | Path | None) -> Path:
    """Return the absolute folder of data sets: ``given``, or ``DYNABRO_DATA``, or a folder in the
    cache.
    """
    chosen = given or os.environ.get("DYNABRO_DATA") or cache_folder() / "data"
    return Path(os.path.expanduser(chosen)).absolute()
