"""What the parts of a run need to know of each other and of the run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from dynabro_cli.aggregators._api import Aggregator, AggregatorSetting
from dynabro_cli.attacks._api import Attack, AttackSetting
from dynabro_cli.components import Component, format_value
from dynabro_cli.errors import SpecError
from dynabro_cli.experiment.participation import answering_count
from dynabro_cli.experiment.samples import samples_each
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.methods._api import Method, MethodSetting
from dynabro_cli.pre_aggregators._chain import build_chain
from dynabro_cli.switching._api import SwitchingSetting
from dynabro_cli.tasks._api import Task, TaskSetting


def method_setting(spec: RunSpec, task: Task | None) -> MethodSetting:
    """What the method knows of a completed spec before the aggregation chain is known, and V: of its workers, how many send."""
    samples, size = samples_each(spec, task) if task else None, spec.batch_size
    batches = -(-samples // size) if samples and size else None
    return MethodSetting(chain_setting(spec).workers, spec.budget or 0, 0.0, None, spec.learning_rate, batches)


def chain_setting(spec: RunSpec, threshold: float | None = None) -> AggregatorSetting:
    """What the aggregation chain is told of a completed spec: of the n workers that answer, f <= (n - 1)/2 are Byzantine.

    A round's sample may have more, up to the declared number, and so a Byzantine majority.
    """
    count, declared = answering_count(spec.participation, spec.workers or 0), spec.byzantine or 0
    byzantine = declared if count == spec.workers else min(declared, (count - 1) // 2)
    return AggregatorSetting(count, byzantine, threshold, spec.seed)


def attack_setting(spec: RunSpec, method: Method, always: int | None = None) -> AttackSetting:
    """What the attack is told of a completed spec and its method."""
    return AttackSetting(chain_setting(spec).workers, method.beta, always, spec.seed)


def switching_setting(spec: RunSpec, method: Method) -> SwitchingSetting:
    """What a switching strategy is told of a completed spec and its method."""
    return SwitchingSetting(spec.workers or 0, spec.byzantine or 0, spec.seed, method.beta, method.jmax)


def assemble(
    spec: RunSpec,
    task: Component[Any] | None,
    method: Component[Any],
    aggregator: Component[Any],
    chain: tuple[Component[Any], ...],
    measured_noise: float | None = None,
) -> tuple[Method, Aggregator]:
    """Build the method and the aggregation chain of a completed spec, each with what it needs of the other.

    Raises:
        SpecError: They do not fit each other, or the number of workers.
    """
    setting = method_setting(spec, None if task is None else task.build(TaskSetting(Path())))
    setting = dataclasses.replace(setting, measured_noise=measured_noise)
    draft: Method = method.build(setting)
    rule = build_chain(aggregator, chain, chain_setting(spec, draft.threshold))
    return method.build(dataclasses.replace(setting, kappa=rule.kappa)), rule


def cohort_rule(
    spec: RunSpec, method: Method, aggregator: Component[Any], chain: tuple[Component[Any], ...]
) -> Aggregator | None:
    """The aggregation chain for C of the m workers, of which floor(C f/m) are taken for Byzantine; None without a cohort.

    Raises:
        SpecError: It is not defined for so few workers.
    """
    if method.cohort is None:
        return None
    workers, byzantine = spec.workers or 1, spec.byzantine or 0
    setting = AggregatorSetting(method.cohort, method.cohort * byzantine // workers, method.threshold, spec.seed)
    try:
        return build_chain(aggregator, chain, setting)
    except SpecError as error:
        raise SpecError([f"with C={method.cohort} workers a round: {line}" for line in error.problems]) from None


def need_all(spec: RunSpec, method: Method, rule: Aggregator, attack: Attack) -> list[str]:
    """What of a run in which only some workers answer needs every worker to answer in every round, a line each."""
    by_history = (method.remembers and not method.by_row) or method.judge is not None or method.cohort is not None
    found = [
        (f"method {spec.method!r}", by_history),
        (f"aggregator {spec.aggregator!r}", rule.by_number),
        (f"attack {spec.attack!r}", attack.by_number),
    ]
    why = f"needs every worker in every round, and participation={format_value(spec.participation)}; type --participation 1"
    return [f"{name} {why}" for name, needs in found if needs]
