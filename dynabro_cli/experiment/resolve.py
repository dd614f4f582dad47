"""From a spec as a user writes it to one that is complete, canonical and known to be able to run."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from dynabro_cli.aggregators import _api as aggregators
from dynabro_cli.aggregators._api import Aggregator
from dynabro_cli.attacks import _api as attacks
from dynabro_cli.components import Component, Entry, Registry
from dynabro_cli.errors import SpecError
from dynabro_cli.experiment.build import assemble, attack_setting, chain_setting, cohort_rule, method_setting, switching_setting
from dynabro_cli.experiment.fit import Parts, Problems, aggregator_of, check_fit, conflicts, usual_entry
from dynabro_cli.experiment.key import run_key
from dynabro_cli.experiment.spec import CHAIN, COMPONENTS, RunSpec, format_drops, parse_drops
from dynabro_cli.methods import _api as methods
from dynabro_cli.methods._api import Method, MethodSetting
from dynabro_cli.models import _api as models
from dynabro_cli.partitions import _api as partitions
from dynabro_cli.partitions._api import PartitionSetting
from dynabro_cli.pre_aggregators import _api as pre_aggregators
from dynabro_cli.pre_aggregators._chain import split_chain
from dynabro_cli.switching import _api as switching
from dynabro_cli.tasks import _api as tasks
from dynabro_cli.tasks._api import Defaults, Task, TaskSetting

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

SINGLE = {name: kind for name, kind in COMPONENTS.items() if name != CHAIN}
"""The fields that name one component, or none."""
LATE = ("model", "aggregator")
"""Those of them whose default follows from other components."""


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
    def fields(self) -> dict[str, Any]:
        """The fields of the spec by name."""
        return vars(self.spec)

    @property
    def mapping(self) -> dict[str, Any]:
        """Every field and every component parameter, defaults materialised."""
        parts = {name: part.mapping for name in SINGLE if (part := getattr(self, name)) is not None}
        return self.fields | parts | {CHAIN: [part.mapping for part in self.pre_aggregators]}

    @property
    def components(self) -> dict[str, Entry[Any]]:
        """All that the run is put together from, by the names that ``dynabro show`` takes: ``aggregators/cwtm``."""
        kinds = {registry.kind: name for name, registry in REGISTRIES.items()}
        single = (getattr(self, name) for name in SINGLE)
        parts = [part for part in (*single, *self.pre_aggregators) if part is not None]
        return {f"{kinds[part.entry.kind]}/{part.name}": part.entry for own in parts for part in (own, *own.inner)}

    @functools.cached_property
    def key(self) -> str:
        """The run key, 64 hexadecimal digits."""
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


def resolve(spec: RunSpec) -> Run:
    """Fill in the defaults, write components canonically, and check that the run can start.

    Raises:
        SpecError: With every problem of the spec that can be told, a line each.
    """
    problems = Problems(spec.problems())
    numbers_legal = not problems.lines
    parts: Parts = {
        name: problems.attempt(REGISTRIES[kind].parse, str(getattr(spec, name)))
        for name, kind in SINGLE.items()
        if name not in LATE
    }
    chain = problems.attempt(_parse_chain, str(spec.pre_aggregators)) or ()
    task: Task | None = problems.attempt(parts["task"].build, TaskSetting(Path())) if parts["task"] else None
    parts["model"] = _model(spec, task, problems)
    if spec.lr_drop is not None:
        problems.attempt(parse_drops, str(spec.lr_drop))
    if task is not None and numbers_legal:
        spec = _complete(spec, task.defaults, parts)
        problems.lines += conflicts(spec, task, parts)
    draft = _draft(spec, task, parts["method"], problems) if numbers_legal and spec.workers and spec.budget else None
    parts["aggregator"] = aggregator_of(spec, draft, chain, problems)
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
    check_fit(spec, task, parts, chain, problems)
    problems.stop()
    parts, chain = _canonical(spec, task, parts, chain)
    texts: dict[str, Any] = {name: part.text for name, part in parts.items() if part is not None}
    spec = dataclasses.replace(spec, **texts, pre_aggregators=_chain_text(chain))
    return Run(spec, pre_aggregators=chain, **parts)  # type: ignore[arg-type]


def _parse_chain(text: str) -> tuple[Component[Any], ...]:
    return tuple(REGISTRIES["pre_aggregators"].parse(part) for part in split_chain(text))


def _chain_text(chain: tuple[Component[Any], ...]) -> str:
    return "+".join(part.text for part in chain) or "none"


def _model(spec: RunSpec, task: Task | None, problems: Problems) -> Component[Any] | None:
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


def _draft(spec: RunSpec, task: Task | None, method: Component[Any] | None, problems: Problems) -> Method | None:
    """The method as it is before the aggregation chain is known: enough to tell what defaults it wants."""
    return None if method is None else problems.attempt(method.build, method_setting(spec, task))


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
