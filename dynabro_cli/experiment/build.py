"""From a complete spec to the parts of a run: each is built once, and told afterwards what others know."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

from dynabro_cli.aggregators._api import Aggregator, AggregatorSetting
from dynabro_cli.attacks._api import Attack, AttackSetting
from dynabro_cli.components import Component, format_value
from dynabro_cli.errors import SpecError
from dynabro_cli.experiment.complete import CompleteSpec
from dynabro_cli.experiment.participation import answering_count
from dynabro_cli.experiment.samples import samples_each
from dynabro_cli.methods._api import GatheringMethod, JudgingMethod, Method, MethodSetting, Told, senders
from dynabro_cli.partitions._api import Partition
from dynabro_cli.pre_aggregators._chain import build_chain
from dynabro_cli.switching._api import Switching, SwitchingSetting
from dynabro_cli.tasks._api import Task


class Built(NamedTuple):
    """The parts of a run, all but its model.

    Attributes:
        task: The task.
        method: The method before ``tell``.
        aggregator: The rule behind its pre-aggregators; ``stages`` has what each of these and the rule were told.
        attack: The attack.
        switching: The identity-switching strategy.
        partition: The distribution of the training set.
        cohort: The same chain for rounds in which only the method's cohort takes part; None without a cohort.
    """

    task: Task
    method: Method
    aggregator: Aggregator
    stages: tuple[AggregatorSetting, ...]
    attack: Attack
    switching: Switching
    partition: Partition
    cohort: Aggregator | None


def method_setting(spec: CompleteSpec, task: Task) -> MethodSetting:
    """Return the first setting of the method: of its workers, the number that send."""
    samples, size = samples_each(spec, task), spec.batch_size
    batches = None if samples is None else -(-samples // size)
    return MethodSetting(chain_setting(spec).workers, spec.budget, spec.learning_rate, batches)


def chain_setting(spec: CompleteSpec, threshold: float | None = None) -> AggregatorSetting:
    """Return the setting of the aggregation chain: of the n workers that answer, f <= (n - 1)/2 are Byzantine.

    A round's sample may have more, up to the declared number, and so a Byzantine majority.
    """
    count, declared = answering_count(spec.participation, spec.workers), spec.byzantine
    byzantine = declared if count == spec.workers else min(declared, (count - 1) // 2)
    return AggregatorSetting(count, byzantine, threshold, spec.seed)


def attack_setting(spec: CompleteSpec, method: Method, always: int | None = None) -> AttackSetting:
    """Return the setting of the attack for the run and its method."""
    return AttackSetting(chain_setting(spec).workers, method.beta, always, spec.seed)


def switching_setting(spec: CompleteSpec, method: Method) -> SwitchingSetting:
    """Return the setting of a switching strategy for the run and its method."""
    return SwitchingSetting(spec.workers, spec.byzantine, spec.seed, method.beta, method.jmax)


def tell(spec: CompleteSpec, method: Method, aggregator: Aggregator, noise: float | None = None) -> tuple[Method, Aggregator]:
    """Tell method and aggregator what each needs of the other.

    Args:
        spec: The run.
        method: The method as its factory made it.
        aggregator: The aggregation chain.
        noise: V, once it is measured.

    Raises:
        SpecError: The parts do not fit each other.
    """
    if method.told is not None:
        method = method.told(Told(aggregator.kappa, spec.learning_rate, noise))
    return method, at_threshold(aggregator, method)


def at_threshold(aggregator: Aggregator, method: Method) -> Aggregator:
    """Return the aggregator at the method's threshold, if it waits for one and the method sets one."""
    if aggregator.at_threshold is None or method.threshold is None:
        return aggregator
    return aggregator.at_threshold(method.threshold)


def build_cohort(
    spec: CompleteSpec, method: Method, aggregator: Component[Any], chain: tuple[Component[Any], ...]
) -> Aggregator | None:
    """Build the aggregation chain for C of the m workers, of which floor(C f/m) are taken for Byzantine.

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
        raise SpecError([f"with C={method.cohort} workers a round: {line}" for line in error.problems]) from None


def need_all(spec: CompleteSpec, method: Method, rule: Aggregator, attack: Attack) -> list[str]:
    """Return the parts that need every worker to answer in every round, one line each."""
    workers = senders(method)
    by_history = (
        (workers.remembers and not workers.by_row)
        or isinstance(method, JudgingMethod)
        or (isinstance(method, GatheringMethod) and method.cohort is not None)
    )
    found = [
        (f"method {spec.method!r}", by_history),
        (f"aggregator {spec.aggregator!r}", rule.by_number),
        (f"attack {spec.attack!r}", attack.by_number),
    ]
    why = f"needs every worker in every round, and participation={format_value(spec.participation)}. Try: --participation 1"
    return [f"{name} {why}" for name, needs in found if needs]


def data_directory(given: str | Path | None) -> Path:
    """Return the folder of data sets: ``given``, or ``DYNABRO_DATA``, or a folder in the platform's cache."""
    chosen = given or os.environ.get("DYNABRO_DATA") or platformdirs.user_cache_path("dynabro") / "data"
    return Path(chosen).expanduser()
