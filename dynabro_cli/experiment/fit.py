"""What of a spec does not go together, told in lines, all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dynabro_cli.aggregators._api import REGISTRY as AGGREGATORS
from dynabro_cli.attacks._api import ON_VECTORS, Attack, AttackSetting
from dynabro_cli.components import Component
from dynabro_cli.errors import SpecError
from dynabro_cli.experiment.build import (
    assemble,
    attack_setting,
    chain_setting,
    cohort_rule,
    method_setting,
    need_all,
    switching_setting,
)
from dynabro_cli.experiment.samples import sample_conflicts
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.lazy import torch
from dynabro_cli.methods._api import Method
from dynabro_cli.partitions._api import PartitionSetting
from dynabro_cli.switching._api import Switching
from dynabro_cli.tasks._api import ImageShape, Task

T = TypeVar("T")
Parts = dict[str, "Component[Any] | None"]
ENTRIES = {"gradient": "gradients", "message": "messages", "state": "states", "data": "data"}
"""What an attack acts on, by the entry."""


class Problems:
    """Collects the problems of several steps, so that all are reported at once."""

    def __init__(self, problems: list[str]) -> None:
        self.lines = problems

    def attempt(self, step: Callable[..., T], *arguments: Any) -> T | None:
        """Return what ``step`` returns; None, with its problems kept, where it raises SpecError."""
        try:
            return step(*arguments)
        except SpecError as error:
            self.lines += [line for line in error.problems if line not in self.lines]
            return None

    def stop(self) -> None:
        """Raise SpecError if there are any."""
        if self.lines:
            raise SpecError(self.lines)


def aggregator_of(
    spec: RunSpec, draft: Method | None, chain: tuple[Component[Any], ...], problems: Problems
) -> Component[Any] | None:
    """The aggregator given, or the default: MFM for the method that sets its threshold, the mean for those that filter by
    themselves, CWTM for all others."""
    if draft is not None and draft.judge is not None:
        return _mean(spec, chain, problems)
    sets_threshold = draft is not None and draft.threshold is not None
    text = str(spec.aggregator or ("mfm" if sets_threshold else "cwtm"))
    component = problems.attempt(AGGREGATORS.parse, text)
    if sets_threshold and component is not None and component.name != "mfm":
        problems.lines.append(
            f"method {spec.method!r} aggregates with mfm, and aggregator={component.text}; "
            "leave --aggregator out, or type filter=option1"
        )
    return component


def _mean(spec: RunSpec, chain: tuple[Component[Any], ...], problems: Problems) -> Component[Any] | None:
    """The only aggregator of a method that filters by itself."""
    component = problems.attempt(AGGREGATORS.parse, str(spec.aggregator or "mean"))
    if component is not None and component.name != "mean":
        problems.lines.append(
            f"method {spec.method!r} filters by itself and takes the mean of what is left, and aggregator={component.text}; "
            "leave --aggregator out, or type --aggregator mean"
        )
    if chain:
        problems.lines.append(
            f"method {spec.method!r} judges each worker's own messages, and pre_aggregators={spec.pre_aggregators}; "
            "leave --pre out"
        )
    return component


def conflicts(spec: RunSpec, task: Task, parts: Parts) -> list[str]:
    """What is wrong between the numbers of a completed spec, a line each."""
    found = []
    workers, byzantine = spec.workers or 0, spec.byzantine or 0
    if 2 * byzantine >= workers:
        most = (workers - 1) // 2
        found.append(
            f"byzantine={byzantine} of workers={workers} is not legal: 2f < m must hold, so f is at most {most}; "
            f"type --byzantine {most} (bernoulli switching may exceed it in a round, by its delta_max)"
        )
    if spec.lr_drop != "none" and spec.lr_rule == "adagrad-norm":
        found.append(f"lr_rule=adagrad-norm sets the learning rate itself, and lr_drop={spec.lr_drop}; type --lr-drop none")
    if spec.precision != "fp32" and not task.trains_model:
        found.append(
            f"task {spec.task!r} is computed in double precision, and precision={spec.precision}; type --precision fp32"
        )
    return found + sample_conflicts(spec, task, parts["data"])


def check_fit(spec: RunSpec, task: Task, parts: Parts, chain: tuple[Component[Any], ...], problems: Problems) -> None:
    """Build every component once in its setting; what does not fit says so."""
    method, aggregator, attack, strategy = (parts[name] for name in ("method", "aggregator", "attack", "switching"))
    if method is None or aggregator is None or attack is None or strategy is None:
        return
    assembled = problems.attempt(assemble, spec, parts["task"], method, aggregator, chain)
    if assembled is not None:
        problems.attempt(cohort_rule, spec, assembled[0], aggregator, chain)
    planned: Method = method.build(method_setting(spec, task))
    built: Attack | None = problems.attempt(attack.build, attack_setting(spec, planned))
    if built is not None:
        problems.lines += _entry_conflicts(spec, attack.name, built, has_labels=task.trains_model)
    schedule: Switching | None = problems.attempt(strategy.build, switching_setting(spec, planned))
    if schedule is not None and schedule.follow is not None and spec.clock != "round":
        problems.lines.append(
            f"switching {strategy.name!r} learns once a round, and clock={spec.clock}; type --clock round, or leave it out"
        )
    if chain_setting(spec).workers < (spec.workers or 0) and built is not None and assembled is not None:
        problems.lines += need_all(spec, planned, assembled[1], built)
    if parts["data"] is not None:
        problems.attempt(parts["data"].build, PartitionSetting(spec.workers or 0))
    if parts["model"] is not None and task.shape is not None:
        problems.attempt(_check_model, parts["model"], task.shape)


def _check_model(model: Component[Any], shape: ImageShape) -> None:
    """Raise SpecError if there is no such network for images of this shape."""
    if model.entry.check is not None:
        model.entry.check(model, shape)
        return
    with torch.device("meta"):
        model.build(shape)


def usual_entry(attack: Component[Any] | None, setting: AttackSetting) -> str:
    """Resolve attack_entry=auto. If the attack cannot be built (reported elsewhere), fall back to 'gradient'."""
    try:
        entries: tuple[str, ...] = ON_VECTORS if attack is None else attack.build(setting).entries
    except SpecError:
        entries = ON_VECTORS
    return entries[0]


def _entry_conflicts(spec: RunSpec, name: str, attack: Attack, *, has_labels: bool) -> list[str]:
    """Return what does not fit between an attack, its entry and the task, a line each."""
    found = []
    if spec.attack_entry not in attack.entries:
        acts = " or ".join(ENTRIES[entry] for entry in attack.entries)
        found.append(
            f"attack {name!r} acts on {acts}, and attack_entry={spec.attack_entry}; "
            f"leave --attack-entry out, or type --attack-entry {attack.entries[0]}"
        )
    if attack.labels is not None and not has_labels:
        found.append(f"attack {name!r} changes labels, and task {spec.task!r} has none; type another --attack or --task")
    return found
