"""Turn a user's spec into a complete, canonical spec that can run."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dynabro_cli.components.aggregators._api import Aggregator
from dynabro_cli.components.methods._api import JudgingMethod, Method, MethodSetting
from dynabro_cli.components.pre_aggregators._chain import split_chain
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks._api import Defaults, Task, TaskSetting
from dynabro_cli.core.errors import Problems, SpecError
from dynabro_cli.core.registration import Component, Entry, ParameterInfo
from dynabro_cli.experiment.build import Built, Components, assemble, at_threshold, build
from dynabro_cli.experiment.complete import CompleteSpec, format_drops, method_setting, parse_drops
from dynabro_cli.experiment.conflicts import conflicts
from dynabro_cli.experiment.effect import adversary_of
from dynabro_cli.experiment.key import run_key
from dynabro_cli.experiment.spec import CHAIN, COMPONENTS, RunSpec, fields

SINGLE = {name: kind for name, kind in COMPONENTS.items() if name != CHAIN}
"""The fields that name at most one component."""
LATE = ("model", "aggregator")
"""Fields whose defaults follow from other components."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A spec with every field set, its components, and its key."""

    spec: CompleteSpec
    task: Component[Any]
    model: Component[Any] | None
    method: Component[Any]
    aggregator: Component[Any]
    pre_aggregators: tuple[Component[Any], ...]
    attack: Component[Any]
    switching: Component[Any]
    data: Component[Any]
    data_dir: Path = dataclasses.field(default=Path(), compare=False)

    @functools.cached_property
    def parts(self) -> Built:
        """The parts of the run, each built once.

        A copy made by ``dataclasses.replace`` builds its own parts from its own components.
        """
        task = self.task.build(TaskSetting(self.data_dir))
        method = self.method.build(method_setting(self.spec, task))
        single = {name: getattr(self, name) for name in SINGLE}
        entry = self.spec.attack_entry
        return build(self.spec, entry, task, method, single, self.pre_aggregators)

    def with_parts(self, parts: Built) -> Run:
        """Return the run with parts that are already built, or with other ones."""
        run = dataclasses.replace(self)
        vars(run)["parts"] = parts  # the cached value of the property
        return run

    def with_data(self, data_dir: Path) -> Run:
        """Return the run with its data sets in another folder."""
        if data_dir == self.data_dir:
            return self
        task = self.task.build(TaskSetting(data_dir))
        run = dataclasses.replace(self, data_dir=data_dir)
        return run.with_parts(self.parts._replace(task=task))

    def with_seed(self, seed: int) -> Run:
        """Return the run with another legal seed. No part's legality or canonical text depends on
        the seed.
        """
        return dataclasses.replace(self, spec=dataclasses.replace(self.spec, seed=seed))

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
        """All components of the run, by the names of ``dynabro show``: ``aggregators/cwtm``."""
        kinds = {registry.kind: name for name, registry in REGISTRIES.items()}
        single = (getattr(self, name) for name in SINGLE)
        parts = [part for part in (*single, *self.pre_aggregators) if part is not None]
        return {
            f"{kinds[part.entry.kind]}/{part.name}": part.entry
            for outer in parts
            for part in (outer, *outer.inner)
        }

    def equivalents(self) -> Iterator[Run]:
        """Yield the other runs that differ from this one in fields without effect: other keys, and
        the same numbers.
        """
        met = adversary_of(self.fields)
        infos = [info for info in self.attack.entry.infos if info.key in dict(met.idle)]
        choices = itertools.product(*(info.limits["choices"] or (info.default,) for info in infos))
        attacks = [_changed(self.attack, infos, values) for values in choices]
        for attack, entry, clock in itertools.product(attacks, met.entries, met.clocks):
            spec = dataclasses.replace(
                self.spec, attack=attack.text, attack_entry=entry, clock=clock
            )
            if spec != self.spec:
                yield dataclasses.replace(self, spec=spec, attack=attack)

    @functools.cached_property
    def key(self) -> str:
        """The run key, 64 hexadecimal digits."""
        return run_key(self.mapping)

    def assemble(self, measured_noise: float | None = None) -> tuple[Method, Aggregator]:
        """Return the method and the aggregation chain, each with the values that it needs from the
        other, and V.

        Raises:
            SpecError: They do not match.
        """
        return assemble(self.spec, self.parts.method, self.parts.aggregator, measured_noise)

    @property
    def method_setting(self) -> MethodSetting:
        """The first setting of the method."""
        return method_setting(self.spec, self.task.build(TaskSetting(self.data_dir)))

    def cohort_rule(self, method: Method) -> Aggregator | None:
        """Return the aggregation chain for rounds in which only the method's cohort takes part;
        None without a cohort.
        """
        return None if self.parts.cohort is None else at_threshold(self.parts.cohort, method)


def _changed(
    component: Component[Any], infos: Sequence[ParameterInfo], values: Sequence[Any]
) -> Component[Any]:
    """Return a component with other values of some parameters."""
    given = {info.field: value for info, value in zip(infos, values, strict=True)}
    return dataclasses.replace(
        component, parameters=dataclasses.replace(component.parameters, **given)
    )


def resolve(spec: RunSpec, data_dir: Path = Path()) -> Run:
    """Fill in the defaults, write components canonically, build them, and check that the run can
    start.

    Args:
        spec: The run.
        data_dir: The folder of data sets, which paths in the spec are relative to; ``Path()`` if it
            is unknown.

    Raises:
        SpecError: With every problem of the spec, one line each.
    """
    problems = Problems(spec.problems())
    numbers_legal = not problems.lines
    parts: Components = {
        name: problems.attempt(REGISTRIES[kind].parse, str(getattr(spec, name)))
        for name, kind in SINGLE.items()
        if name not in LATE
    }
    chain = problems.attempt(_parse_chain, str(spec.pre_aggregators)) or ()
    task: Task | None = (
        problems.attempt(parts["task"].build, TaskSetting(data_dir)) if parts["task"] else None
    )
    parts["model"] = _model(spec, task, problems)
    if spec.lr_drop is not None:
        problems.attempt(parse_drops, str(spec.lr_drop))
    draft: CompleteSpec | None = None
    method: Method | None = None
    if task is not None and numbers_legal:
        rotating = parts["switching"] is not None and parts["switching"].name == "rotating"
        draft = _complete(spec, task.defaults, rotating=rotating)
        problems.lines += conflicts(draft, task, parts["data"])
        # its default may follow from the method
        setting = dataclasses.replace(method_setting(draft, task), learning_rate=spec.learning_rate)
        if parts["method"] is not None:
            method = problems.attempt(parts["method"].build, setting)
    parts["aggregator"] = _aggregator(spec, method, chain, problems)
    if task is None or draft is None or method is None or problems.lines:
        raise SpecError(problems.lines)
    if spec.learning_rate is None and method.jmax is not None:
        draft = dataclasses.replace(draft, learning_rate=task.defaults.mlmc_learning_rate)
    draft = dataclasses.replace(draft, lr_drop=format_drops(parse_drops(draft.lr_drop)))
    built = build(draft, spec.attack_entry, task, method, parts, chain)
    draft = dataclasses.replace(draft, attack_entry=spec.attack_entry or built.attack.entries[0])
    parts, chain = _canonical(built, parts, chain, data_dir)
    texts: dict[str, Any] = {name: part.text for name, part in parts.items() if part is not None}
    draft = dataclasses.replace(draft, **texts, pre_aggregators=_chain_text(chain))
    run = Run(draft, pre_aggregators=chain, data_dir=data_dir, **parts)  # type: ignore[arg-type]
    return run.with_parts(built)


def _parse_chain(text: str) -> tuple[Component[Any], ...]:
    return tuple(REGISTRIES["pre_aggregators"].parse(part) for part in split_chain(text))


def _chain_text(chain: tuple[Component[Any], ...]) -> str:
    return "+".join(part.text for part in chain) or "none"


def _model(spec: RunSpec, task: Task | None, problems: Problems) -> Component[Any] | None:
    """Return the given model, or the task's."""
    if task is None or task.trains_model:
        text = spec.model or (None if task is None else task.defaults.model)
        if text is not None:
            return problems.attempt(REGISTRIES["models"].parse, str(text))
        if task is not None:
            problems.lines.append(
                f"task {spec.task!r} has no default model. Try: --model NAME, one of dynabro list "
                "models"
            )
    elif spec.model is not None:
        problems.lines.append(
            f"task {spec.task!r} has no model, and model={spec.model}. Try: no --model"
        )
    return None


def _complete(spec: RunSpec, defaults: Defaults, *, rotating: bool) -> CompleteSpec:
    """Set every field that is None to the task's default; f scales with the workers.

    Fields that follow from components (aggregator, attack_entry, learning rate) are set to the
    values of most runs.

    Args:
        spec: The run.
        defaults: The defaults of its task.
        rotating: True if its switching strategy is ``rotating``, whose groups are thirds of the
            workers.
    """
    workers = spec.workers or defaults.workers
    usual: dict[str, Any] = {
        "workers": workers,
        "byzantine": min(-(-workers // 3), max(workers - 1, 0) // 2)
        if rotating
        else defaults.byzantine * workers // defaults.workers,
        "budget": defaults.budget,
        "batch_size": defaults.batch_size,
        "learning_rate": defaults.learning_rate,
        "lr_drop": "none" if spec.lr_rule == "adagrad-norm" else defaults.lr_drop,
        "weight_decay": defaults.weight_decay,
        "eval_every": defaults.eval_every,
        "aggregator": "cwtm",
        "attack_entry": "gradient",
    }
    filled: dict[str, Any] = usual | {
        name: value for name, value in vars(spec).items() if value is not None
    }
    numbers: dict[str, Any] = {
        name: float(filled[name]) + 0.0 for name, field in fields().items() if field.type is float
    }  # -0.0 is 0.0
    return CompleteSpec(**(filled | numbers))


def _aggregator(
    spec: RunSpec, draft: Method | None, chain: tuple[Component[Any], ...], problems: Problems
) -> Component[Any] | None:
    """Return the given aggregator, or the default one.

    A method that filters workers itself has the mean, and a method that sets MFM's threshold has
    MFM; the default of other methods is CWTM.
    """
    judges = isinstance(draft, JudgingMethod)
    sets_threshold = draft is not None and draft.threshold is not None
    only = "mean" if judges else "mfm" if sets_threshold else None
    text = str(spec.aggregator or only or "cwtm")
    component = problems.attempt(REGISTRIES["aggregators"].parse, text)
    if only is not None and component is not None and component.name != only:
        problems.lines.append(
            f"method {spec.method!r} filters by itself and takes the mean of what is left, and "
            f"aggregator={component.text}. "
            "Try: no --aggregator, or --aggregator mean"
            if judges
            else f"method {spec.method!r} aggregates with mfm, and aggregator={component.text}. "
            "Try: no --aggregator, or filter=option1"
        )
    if judges and chain:
        problems.lines.append(
            f"method {spec.method!r} judges each worker's own messages, and "
            f"pre_aggregators={spec.pre_aggregators}. "
            "Try: no --pre"
        )
    return component


def _canonical(
    built: Built, parts: Components, chain: tuple[Component[Any], ...], data_dir: Path
) -> tuple[Components, tuple[Component[Any], ...]]:
    """Return the components, with ``auto`` in place of its value in this run: ``cwtm`` for
    ``cwtm:f=8`` if f is 8.
    """
    settings = built.settings | {"task": TaskSetting(data_dir)}
    shortened = {
        name: part and part.canonical(settings[name])
        for name, part in parts.items()
        if settings[name] is not None
    }
    return parts | shortened, tuple(
        stage.canonical(setting) for stage, setting in zip(chain, built.stages[:-1], strict=True)
    )
