"""Find parts of a spec that do not fit together; report all problems at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, cast

from dynabro_cli.aggregators._api import REGISTRY as AGGREGATORS
from dynabro_cli.attacks._api import ON_VECTORS, Attack
from dynabro_cli.components import Component
from dynabro_cli.errors import SpecError
from dynabro_cli.experiment.build import Built, attack_setting, build_cohort, chain_setting, need_all, switching_setting, tell
from dynabro_cli.experiment.complete import CompleteSpec
from dynabro_cli.experiment.samples import sample_conflicts
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.lazy import torch
from dynabro_cli.methods._api import JudgingMethod, Method
from dynabro_cli.partitions._api import Partition, PartitionSetting
from dynabro_cli.pre_aggregators._chain import build_stages
from dynabro_cli.switching._api import Switching
from dynabro_cli.tasks._api import ImageShape, Task

T = TypeVar("T")
Components = dict[str, "Component[Any] | None"]
ENTRIES = {"gradient": "gradients", "message": "messages", "state": "states", "data": "data"}
"""Objects of an attack, by the entry."""


class Problems:
    """Collect the problems of several steps, to report them at once."""

    def __init__(self, problems: list[str]) -> None:
        self.lines = problems

    def attempt(self, step: Callable[..., T], *arguments: Any) -> T | None:
        """Return the result of ``step``; None, with its problems kept, if it raises SpecError."""
        try:
            return step(*arguments)
        except SpecError as error:
            self.lines += [line for line in error.problems if line not in self.lines]
            return None


def aggregator_of(
    spec: RunSpec, draft: Method | None, chain: tuple[Component[Any], ...], problems: Problems
) -> Component[Any] | None:
    """Return the given aggregator, or the default: MFM if the method sets its threshold, the mean if the method filters by
    itself, CWTM otherwise.
    """
    if isinstance(draft, JudgingMethod):
        return _mean(spec, chain, problems)
    sets_threshold = draft is not None and draft.threshold is not None
    text = str(spec.aggregator or ("mfm" if sets_threshold else "cwtm"))
    component = problems.attempt(AGGREGATORS.parse, text)
    if sets_threshold and component is not None and component.name != "mfm":
        problems.lines.append(
            f"method {spec.method!r} aggregates with mfm, and aggregator={component.text}. "
            "Try: no --aggregator, or filter=option1"
        )
    return component


def _mean(spec: RunSpec, chain: tuple[Component[Any], ...], problems: Problems) -> Component[Any] | None:
    """Return the only aggregator of a method that filters by itself."""
    component = problems.attempt(AGGREGATORS.parse, str(spec.aggregator or "mean"))
    if component is not None and component.name != "mean":
        problems.lines.append(
            f"method {spec.method!r} filters by itself and takes the mean of what is left, and aggregator={component.text}. "
            "Try: no --aggregator, or --aggregator mean"
        )
    if chain:
        problems.lines.append(
            f"method {spec.method!r} judges each worker's own messages, and pre_aggregators={spec.pre_aggregators}. "
            "Try: no --pre"
        )
    return component


def conflicts(spec: CompleteSpec, task: Task, parts: Components) -> list[str]:
    """Return the problems between the numbers of a completed spec, one line each."""
    found = []
    workers, byzantine = spec.workers, spec.byzantine
    if 2 * byzantine >= workers:
        most = (workers - 1) // 2
        found.append(
            f"byzantine={byzantine} of workers={workers} is not legal: 2f < m must hold, so f is at most {most}. "
            f"Try: --byzantine {most} (bernoulli switching may exceed it in a round, by its delta_max)"
        )
    if spec.lr_drop != "none" and spec.lr_rule == "adagrad-norm":
        found.append(f"lr_rule=adagrad-norm sets the learning rate itself, and lr_drop={spec.lr_drop}. Try: --lr-drop none")
    if spec.precision != "fp32" and not task.trains_model:
        found.append(
            f"task {spec.task!r} is computed in double precision, and precision={spec.precision}. Try: --precision fp32"
        )
    return found + sample_conflicts(spec, task, parts["data"])


def build(
    spec: CompleteSpec,
    entry: str | None,
    task: Task,
    method: Method,
    parts: Components,
    chain: tuple[Component[Any], ...],
    problems: Problems,
) -> tuple[Built, CompleteSpec]:
    """Build every component once in its setting.

    Args:
        spec: The run, complete but for ``attack_entry``.
        entry: The entry of the attack; None for its usual entry.
        task: The task.
        method: The method, as its factory made it.
        parts: The components.
        chain: The pre-aggregators.
        problems: Collects the problems.

    Raises:
        SpecError: There are problems.
    """
    rule, attacker, strategy, data = (
        cast("Component[Any]", parts[name]) for name in ("aggregator", "attack", "switching", "data")
    )
    aggregator, stages = problems.attempt(build_stages, rule, chain, chain_setting(spec, method.threshold)) or (None, ())
    fits = aggregator is not None and problems.attempt(tell, spec, method, aggregator) is not None
    cohort = problems.attempt(build_cohort, spec, method, rule, chain) if fits else None
    attack: Attack | None = problems.attempt(attacker.build, attack_setting(spec, method))
    spec = dataclasses.replace(spec, attack_entry=entry or (ON_VECTORS if attack is None else attack.entries)[0])
    if attack is not None:
        problems.lines += _entry_conflicts(spec, attacker.name, attack, has_labels=task.trains_model)
    switching: Switching | None = problems.attempt(strategy.build, switching_setting(spec, method))
    if switching is not None and switching.follow is not None and spec.clock != "round":
        problems.lines.append(
            f"switching {strategy.name!r} learns once a round, and clock={spec.clock}. Try: --clock round, or leave it out"
        )
    if chain_setting(spec).workers < spec.workers and attack is not None and aggregator is not None and fits:
        problems.lines += need_all(spec, method, aggregator, attack)
    partition: Partition | None = problems.attempt(data.build, PartitionSetting(spec.workers))
    if parts["model"] is not None and task.shape is not None:
        problems.attempt(_check_model, parts["model"], task.shape)
    if aggregator is None or attack is None or switching is None or partition is None or problems.lines:
        raise SpecError(problems.lines)
    return Built(task, method, aggregator, stages, attack, switching, partition, cohort), spec


def _check_model(model: Component[Any], shape: ImageShape) -> None:
    """Raise SpecError if there is no such network for images of this shape."""
    if model.entry.check is not None:
        model.entry.check(model, shape)
        return
    with torch.device("meta"):
        model.build(shape)


def _entry_conflicts(spec: CompleteSpec, name: str, attack: Attack, *, has_labels: bool) -> list[str]:
    """Return the problems between an attack, its entry and the task, one line each."""
    found = []
    if spec.attack_entry not in attack.entries:
        acts = " or ".join(ENTRIES[entry] for entry in attack.entries)
        found.append(
            f"attack {name!r} acts on {acts}, and attack_entry={spec.attack_entry}. "
            f"Try: no --attack-entry, or --attack-entry {attack.entries[0]}"
        )
    if attack.labels is not None and not has_labels:
        found.append(f"attack {name!r} changes labels, and task {spec.task!r} has none. Try: another --attack or --task")
    return found
