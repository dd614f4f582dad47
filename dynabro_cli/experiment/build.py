"""Build the parts of a run from a complete spec: each part once, then with the values that it needs
from the others.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple, cast

from dynabro_cli.components.aggregators._api import Aggregator, AggregatorSetting
from dynabro_cli.components.attacks._api import Attack, AttackSetting
from dynabro_cli.components.methods._api import (
    GatheringMethod,
    Measured,
    Method,
    senders,
)
from dynabro_cli.components.partitions._api import Partition, PartitionSetting
from dynabro_cli.components.pre_aggregators._chain import build_chain, build_stages
from dynabro_cli.components.switching._api import Switching, SwitchingSetting
from dynabro_cli.components.tasks._api import ImageShape, Task
from dynabro_cli.core.errors import Problems, SpecError
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine.cache_folder import cache_folder
from dynabro_cli.core.registration import Component
from dynabro_cli.experiment.complete import CompleteSpec, chain_setting, method_setting
from dynabro_cli.experiment.conflicts import attack_conflicts, need_all, needs_server

Components = dict[str, "Component[Any] | None"]


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
        problems.lines += attack_conflicts(
            spec.task, entry, attacker.name, attack, has_labels=task.trains_model
        )
    some_answer = chain_setting(spec).workers < spec.workers
    samples = PartitionSetting(spec.workers)
    switches = SwitchingSetting(spec.workers, spec.byzantine, spec.seed, method.beta, method.jmax)
    switching: Switching | None = problems.attempt(strategy.build, switches)
    if switching is not None and switching.follow is not None and spec.clock != "round":
        problems.lines.append(
            f"switching {strategy.name!r} learns once a round, and clock={spec.clock}. Try: "
            "--clock round, or leave it out"
        )
    if some_answer and attack is not None and aggregator is not None and fits:
        problems.lines += need_all(spec, method, aggregator, attack)
    if aggregator is not None:
        problems.lines += needs_server(spec, task, aggregator)
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


def _check_model(model: Component[Any], shape: ImageShape) -> None:
    """Raise SpecError if the network does not exist for images of this shape."""
    if model.entry.check is not None:
        model.entry.check(model, shape)
        return
    with torch.device("meta"):
        model.build(shape)


def data_directory(given: str | Path | None) -> Path:
    """Return the absolute folder of data sets: ``given``, or ``DYNABRO_DATA``, or a folder in the
    cache.
    """
    chosen = given or os.environ.get("DYNABRO_DATA") or cache_folder() / "data"
    return Path(os.path.expanduser(chosen)).absolute()
