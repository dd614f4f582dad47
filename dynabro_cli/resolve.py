"""From a spec as a user writes it to one that is complete, canonical and known to be able to run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from dynabro_cli.aggregators import _api as aggregators
from dynabro_cli.aggregators._api import Aggregator
from dynabro_cli.assembly import (
    attack_setting,
    chain_setting,
    cohort_rule,
    method_setting,
    need_all,
    switching_setting,
)
from dynabro_cli.attacks import _api as attacks
from dynabro_cli.attacks._api import Attack
from dynabro_cli.attacks._entry import conflicts, usual_entry
from dynabro_cli.components import Component, Registry
from dynabro_cli.errors import SpecError
from dynabro_cli.identity import run_key
from dynabro_cli.methods import _api as methods
from dynabro_cli.methods._api import Method, MethodSetting
from dynabro_cli.models import _api as models
from dynabro_cli.partitions import _api as partitions
from dynabro_cli.partitions._api import PartitionSetting
from dynabro_cli.pre_aggregators import _api as pre_aggregators
from dynabro_cli.pre_aggregators._chain import build_chain, split_chain
from dynabro_cli.samples import sample_conflicts
from dynabro_cli.spec import RunSpec, format_drops, parse_drops
from dynabro_cli.switching import _api as switching
from dynabro_cli.switching._api import Switching
from dynabro_cli.tasks import _api as tasks
from dynabro_cli.tasks._api import Defaults, Task, TaskSetting

T = TypeVar("T")
Parts = dict[str, "Component[Any] | None"]

REGISTRIES: dict[str, Registry[Any]] = {
    "tasks": tasks.REGISTRY,
    "models": models.REGISTRY,
    "methods": methods.REGISTRY,
    "aggregators": aggregators.REGISTRY,
    "pre_aggregators": pre_aggregators.REGISTRY,
    "attacks": attacks.REGISTRY,
    "switching": switching.REGISTRY,
    "partitions": partitions.REGISTRY,
}

SINGLE = {"task": "tasks", "method": "methods", "attack": "attacks", "switching": "switching", "data": "partitions"}
"""The fields that name one component and are never None, each with its registry."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A spec with every field set, its components, and its key."""

    spec: RunSpec
    task: Component[Any]
    model: Component[Any] | None
    method: Component[Any]
    aggregator: Component[Any]
    pre_aggregators: tuple[Component[Any], ...]
    attack: Component[Any]
    switching: Component[Any]
    data: Component[Any]

    @property
    def mapping(self) -> dict[str, Any]:
        """Every field and every component parameter, defaults materialised."""
        plain = dataclasses.asdict(self.spec)
        parts = {
            name: getattr(self, name).mapping
            for name in ("task", "model", "method", "aggregator", "attack", "switching", "data")
            if getattr(self, name) is not None
        }
        return plain | parts | {"pre_aggregators": [part.mapping for part in self.pre_aggregators]}

    @property
    def key(self) -> str:
        return run_key(self.mapping)

    def assemble(self, measured_noise: float | None = None) -> tuple[Method, Aggregator]:
        """Build the method and the aggregation chain, each with what it needs of the other.

        Raises:
            SpecError: They do not fit each other, or the number of workers.
        """
        return assemble(self.spec, self.task, self.method, self.aggregator, self.pre_aggregators, measured_noise)

    @property
    def method_setting(self) -> MethodSetting:
        """What the method knows of the run before the aggregation chain is known, and V."""
        return method_setting(self.spec, self.task.build(TaskSetting(Path())))

    def cohort_rule(self, method: Method) -> Aggregator | None:
        """The aggregation chain for rounds in which only the method's cohort takes part; None where there are none."""
        return cohort_rule(self.spec, method, self.aggregator, self.pre_aggregators)


class _Problems:
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


def resolve(spec: RunSpec) -> Run:
    """Fill in the defaults, write components canonically, and check that the run can start.

    Raises:
        SpecError: With every problem of the spec that can be told, a line each.
    """
    problems = _Problems(spec.problems())
    numbers_legal = not problems.lines
    parts: Parts = {
        name: problems.attempt(REGISTRIES[registry].parse, str(getattr(spec, name))) for name, registry in SINGLE.items()
    }
    chain = problems.attempt(_parse_chain, str(spec.pre_aggregators)) or ()
    task: Task | None = problems.attempt(parts["task"].build, TaskSetting(Path())) if parts["task"] else None
    parts["model"] = _model(spec, task, problems)
    if spec.lr_drop is not None:
        problems.attempt(parse_drops, str(spec.lr_drop))
    if task is not None and numbers_legal:
        spec = _complete(spec, task.defaults, parts)
        problems.lines += _conflicts(spec, task) + sample_conflicts(spec, task, parts["data"])
    draft = _draft(spec, task, parts["method"], problems) if numbers_legal and spec.workers and spec.budget else None
    parts["aggregator"] = _aggregator(spec, draft, chain, problems)
    if task is None or draft is None or problems.lines:
        raise SpecError(problems.lines)
    rate = task.defaults.mlmc_learning_rate if draft.mlmc else task.defaults.learning_rate
    spec = dataclasses.replace(
        spec,
        learning_rate=rate if spec.learning_rate is None else float(spec.learning_rate),
        weight_decay=float(spec.weight_decay or 0),
        lr_drop=format_drops(parse_drops(spec.lr_drop or "none")),
        attack_entry=spec.attack_entry or usual_entry(parts["attack"], attack_setting(spec, draft)),
        participation=float(spec.participation),
        validation=float(spec.validation),
    )
    _check_fit(spec, task, parts, chain, problems)
    problems.stop()
    parts, chain = _canonical(spec, task, parts, chain)
    texts: dict[str, Any] = {name: part.text for name, part in parts.items() if part is not None}
    spec = dataclasses.replace(spec, **texts, pre_aggregators=_chain_text(chain))
    return Run(spec, pre_aggregators=chain, **parts)  # type: ignore[arg-type]


def _parse_chain(text: str) -> tuple[Component[Any], ...]:
    return tuple(REGISTRIES["pre_aggregators"].parse(part) for part in split_chain(text))


def _chain_text(chain: tuple[Component[Any], ...]) -> str:
    return "+".join(part.text for part in chain) or "none"


def _model(spec: RunSpec, task: Task | None, problems: _Problems) -> Component[Any] | None:
    if task is None:
        return problems.attempt(REGISTRIES["models"].parse, str(spec.model)) if spec.model is not None else None
    if not task.trains_model:
        if spec.model is not None:
            problems.lines.append(f"task {spec.task!r} has no model, and model={spec.model}; leave --model out")
        return None
    text = spec.model or task.defaults.model
    if text is None:
        problems.lines.append(f"task {spec.task!r} has no default model; type --model NAME, one of dynabro list models")
        return None
    return problems.attempt(REGISTRIES["models"].parse, str(text))


def _draft(spec: RunSpec, task: Task | None, method: Component[Any] | None, problems: _Problems) -> Method | None:
    """The method as it is before the aggregation chain is known: enough to tell what defaults it wants."""
    return None if method is None else problems.attempt(method.build, method_setting(spec, task))


def _aggregator(
    spec: RunSpec, draft: Method | None, chain: tuple[Component[Any], ...], problems: _Problems
) -> Component[Any] | None:
    """The aggregator given, or the default: MFM for the method that sets its threshold, the mean for those that filter by
    themselves, CWTM for all others."""
    if draft is not None and draft.judge is not None:
        return _mean(spec, chain, problems)
    sets_threshold = draft is not None and draft.threshold is not None
    text = str(spec.aggregator or ("mfm" if sets_threshold else "cwtm"))
    component = problems.attempt(REGISTRIES["aggregators"].parse, text)
    if sets_threshold and component is not None and component.name != "mfm":
        problems.lines.append(
            f"method {spec.method!r} aggregates with mfm, and aggregator={component.text}; "
            "leave --aggregator out, or type filter=option1"
        )
    return component


def _mean(spec: RunSpec, chain: tuple[Component[Any], ...], problems: _Problems) -> Component[Any] | None:
    """The only aggregator of a method that filters by itself."""
    component = problems.attempt(REGISTRIES["aggregators"].parse, str(spec.aggregator or "mean"))
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


def _complete(spec: RunSpec, defaults: Defaults, parts: Parts) -> RunSpec:
    """Set every number but the learning rate that is None to the task's default; f scales with the workers."""
    workers = spec.workers or defaults.workers
    rotating = parts["switching"] is not None and parts["switching"].name == "rotating"
    filled: dict[str, Any] = {
        "workers": workers,
        "byzantine": min(-(-workers // 3), max(workers - 1, 0) // 2)
        if rotating
        else defaults.byzantine * workers // defaults.workers,
        "budget": defaults.budget,
        "batch_size": defaults.batch_size,
        "lr_drop": "none" if spec.lr_rule == "adagrad-norm" else defaults.lr_drop,
        "weight_decay": defaults.weight_decay,
        "eval_every": defaults.eval_every,
    }
    filled |= {name: getattr(spec, name) for name in filled if getattr(spec, name) is not None}
    return dataclasses.replace(spec, **filled)


def _conflicts(spec: RunSpec, task: Task) -> list[str]:
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
    return found


def _check_fit(spec: RunSpec, task: Task, parts: Parts, chain: tuple[Component[Any], ...], problems: _Problems) -> None:
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
        problems.lines += conflicts(spec, attack.name, built, has_labels=task.trains_model)
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
        with torch.device("meta"):
            problems.attempt(parts["model"].build, task.shape)


def _canonical(
    spec: RunSpec, task: Task, parts: Parts, chain: tuple[Component[Any], ...]
) -> tuple[Parts, tuple[Component[Any], ...]]:
    """The components with what ``auto`` comes to in this run written as ``auto``: ``cwtm:f=8`` is ``cwtm`` where f is 8."""
    method, strategy = parts["method"], parts["switching"]
    if method is None or strategy is None:
        return parts, chain
    planned = method_setting(spec, task)
    draft: Method = method.build(planned)
    switched = switching_setting(spec, draft)
    aggregated = chain_setting(spec, draft.threshold)
    always = strategy.build(switched).always if aggregated.workers == spec.workers else None
    stages = []
    for stage in chain:
        stages.append(stage.canonical(aggregated))
        aggregated = dataclasses.replace(aggregated, workers=stage.build(aggregated).workers)
    settings = {
        "task": TaskSetting(Path()),
        "model": task.shape,
        "method": planned,
        "aggregator": aggregated,
        "attack": attack_setting(spec, draft, always),
        "switching": switched,
        "data": PartitionSetting(spec.workers or 0),
    }
    shortened = {name: part and part.canonical(settings[name]) for name, part in parts.items() if settings[name] is not None}
    return parts | shortened, tuple(stages)


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
