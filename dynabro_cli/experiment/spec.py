"""The table of a run's fields, and RunSpec, which has all of them: everything that determines a
run's numbers.

A new field is one row here, with the value ``before`` that all stored runs had. This table is read
by the command line, the columns of ``runs``, the checks of stored runs, ``status``, logs, labels,
legends, ``select`` and forecasts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeVar

from dynabro_cli.core.errors import SpecError, did_you_mean
from dynabro_cli.core.limits import LARGEST, LARGEST_BUDGET, MOST_WORKERS
from dynabro_cli.core.registration import (
    PLUS,
    ParameterInfo,
    format_value,
    parameter,
    parameter_infos,
    plain,
    split_text,
)

Spec = TypeVar("Spec")


def row(
    default: Any,
    *,
    help: str,  # noqa: A002
    column: str,
    component: str | None = None,
    option: str | None = None,
    metavar: str = "NAME",
    before: Any = None,
    speed: bool = False,
    memory: bool = True,
    result: bool = True,
    **limits: Any,
) -> Any:
    """Declare a field of a run.

    Args:
        default: Its default; None stands for the task's default, or a value that follows from other
            fields.
        help: Its meaning on the command line.
        column: Its meaning in the table ``runs``.
        component: The registry of the components that it names, such as ``tasks``; None for a
            number, a choice or a text.
        option: Its command-line option, by default its name.
        metavar: The placeholder of the value in the command's help; a choice shows its values
            there.
        before: Its value in all runs that were stored before the field existed; None for a field of
            the first version.
        speed: True if the time of a gradient computation depends on it.
        memory: True if the memory of a run depends on it.
        result: True if a run's result depends on it, so that plots distinguish runs by it.
        limits: Its legal range, like the arguments of ``components.parameter``.
    """
    declared = parameter(default, help=help, **limits)
    about = {
        "column": column,
        "component": component,
        "short": option,
        "value": metavar,
        "before": before,
    }
    about |= {"speed": speed, "memory": memory, "result": result}
    return dataclasses.field(default=default, metadata={**declared.metadata, "row": about})


@dataclasses.dataclass(frozen=True)
class Field(ParameterInfo):
    """A row of the table; its attributes are arguments of ``row``."""

    column: str
    component: str | None
    short: str | None
    value: str
    before: Any
    speed: bool
    memory: bool
    result: bool

    @property
    def option(self) -> str:
        """The command-line option that sets the field."""
        return "--" + (self.short or self.field).replace("_", "-")

    @property
    def metavar(self) -> str:
        """The placeholder of the value in the command's help."""
        return "|".join(self.limits["choices"] or (self.value,))


def by_any_name(spec: type[Spec]) -> type[Spec]:
    """Let a spec also take short names and NumPy's numbers, and report every unknown name."""
    make = spec.__init__

    @functools.wraps(make)
    def initialize(self: Any, *places: Any, **values: Any) -> None:
        values, legal = canonical(values), fields()
        problems = [
            f"unknown field {name!r}{did_you_mean(str(name), [*legal, *SHORT])}; legal: "
            f"{', '.join(legal)}"
            for name in values
            if name not in legal
        ]
        if problems:
            raise SpecError(problems)
        make(self, *map(plain, places), **{name: plain(value) for name, value in values.items()})

    spec.__init__ = initialize  # type: ignore[method-assign]
    return spec


@by_any_name
@dataclasses.dataclass(frozen=True)
class RunSpec:
    """The description of one run. Components are written ``name:key=value,key=value``; None stands
    for the task's default.

    Example:
        >>> RunSpec(task="digits", method="momentum:beta=0.99", switching="static", seed=1).seed
        1
    """

    task: str = row(
        "digits",
        component="tasks",
        speed=True,
        help="data or objective",
        column="what is learned: a component, as typed; parameters at their default are left out",
    )
    model: str | None = row(
        None,
        component="models",
        speed=True,
        help="network; auto: the task's",
        column="network; NULL for an objective such as `quadratic`",
    )
    method: str = row(
        "dynabro", component="methods", help="training method", column="training method"
    )
    aggregator: str | None = row(
        None,
        component="aggregators",
        help="robust aggregation rule; auto: cwtm, or what the method wants: mfm or mean",
        column="aggregation rule of the server",
    )
    pre_aggregators: str = row(
        "none",
        component="pre_aggregators",
        option="pre",
        help="chain before the rule, joined by +, such as nnm; none: no chain",
        column="rules before the aggregator, joined by `+`; `none` if there are none",
    )
    attack: str = row(
        "sf",
        component="attacks",
        help="what Byzantine workers send",
        column="attack of the Byzantine workers",
    )
    attack_entry: str | None = row(
        None,
        choices=("gradient", "computation", "message", "state", "data"),
        memory=False,
        help="where the attack acts: before momentum, before momentum on each single gradient "
        "computation, on what is sent, on what is sent and kept, or on the data; "
        "auto: data for attacks on data such as label-flip, else gradient",
        column="where the attack acts: `gradient`, `computation`, `message`, `state` or `data`",
    )
    switching: str = row(
        "periodic:K=10",
        component="switching",
        help="identity-switching strategy",
        column="which workers are Byzantine when",
    )
    clock: str = row(
        "round",
        choices=("round", "computation"),
        help="what the strategy counts; by computation, identities can change within a round",
        column="unit of the switching strategy: `round` or `computation`",
    )
    workers: int | None = row(
        None,
        minimum=1,
        maximum=MOST_WORKERS,
        metavar="M",
        speed=True,
        help="number of workers, m",
        column="number of workers m",
    )
    byzantine: int | None = row(
        None,
        minimum=0,
        maximum=LARGEST,
        metavar="F",
        help="declared number of Byzantine workers, f",
        column="declared number f of Byzantine workers",
    )
    budget: int | None = row(
        None,
        minimum=1,
        maximum=LARGEST_BUDGET,
        metavar="N",
        help="gradient computations that each worker makes in the run",
        column="planned gradient computations per worker",
    )
    batch_size: int | None = row(
        None,
        minimum=1,
        maximum=LARGEST,
        metavar="B",
        speed=True,
        help="samples of one gradient computation, B",
        column="samples per gradient computation",
    )
    learning_rate: float | None = row(
        None,
        above=0,
        option="lr",
        metavar="ETA",
        memory=False,
        help="eta, or eta_0 of AdaGrad-Norm",
        column="learning rate eta_0",
    )
    lr_rule: str = row(
        "fixed",
        choices=("fixed", "adagrad-norm"),
        memory=False,
        help="learning rate as given, or AdaGrad-Norm",
        column="learning-rate rule: `fixed` or `adagrad-norm`",
    )
    lr_drop: str | None = row(
        None,
        metavar="FRACTION:FACTOR",
        memory=False,
        help="FRACTION:FACTOR, comma-separated: at this fraction of the budget, multiply by "
        "it; none: never",
        column="drops of the learning rate, as `0.8:0.1`; `none` if there are none",
    )
    weight_decay: float | None = row(
        None,
        minimum=0,
        metavar="WD",
        memory=False,
        help="added to the aggregated gradient at the server",
        column="weight decay, added to the aggregated gradient at the server",
    )
    eval_every: int | None = row(
        None,
        minimum=1,
        maximum=LARGEST,
        metavar="N",
        memory=False,
        result=False,
        help="gradient computations between two evaluations",
        column="gradient computations between two evaluations",
    )
    seed: int = row(
        0,
        minimum=0,
        maximum=2**63 - 1,
        metavar="N",
        memory=False,
        help="of all random streams",
        column="seed of all random draws",
    )
    precision: str = row(
        "fp32",
        choices=("fp32", "tf32", "bf16"),
        before="fp32",
        speed=True,
        memory=False,
        help="what gradients are computed in: single precision, its products in TensorFloat-32 "
        "(GPUs), or bfloat16",
        column="precision of the gradients: `fp32`, `tf32` or `bf16`",
    )
    participation: float = row(
        1.0,
        above=0,
        maximum=1,
        metavar="SHARE",
        before=1.0,
        speed=True,
        help="share of the workers that answer in a round, drawn uniformly for each round",
        column="share of the workers that answers in a round",
    )
    data: str = row(
        "iid",
        component="partitions",
        before="iid",
        help="how the training set is shared out among the workers",
        column="distribution of the training set over the workers",
    )
    validation: float = row(
        0.0,
        minimum=0,
        below=1,
        metavar="SHARE",
        before=0.0,
        help="share of the training set that is held out to choose by, and never trained on",
        column="share of the training set that is held out for validation",
    )

    def __eq__(self, other: object) -> bool:
        """Compare by the values of the fields, complete or not."""
        return vars(self) == vars(other) if isinstance(other, RunSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in fields()))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunSpec:
        """Build a spec from ``values`` by full or short names; raise a SpecError that lists every
        unknown field.
        """
        return cls(**values)

    @classmethod
    def from_text(cls, values: Mapping[str, str]) -> RunSpec:
        """Build a spec from typed texts; a text that should be a number but is not one is kept for
        ``problems``.
        """
        typed: dict[str, Any] = {}
        for name, text in canonical(values).items():
            try:
                typed[name] = fields()[name].parse(text)
            except (KeyError, ValueError):
                typed[name] = text
        return cls.from_mapping(typed)

    def problems(self) -> list[str]:
        """Return the problems of single fields, one line each: wrong type, or out of range."""
        lines = []
        for name, info in fields().items():
            value = getattr(self, name)
            if value is None and info.optional:
                continue
            try:
                if isinstance(value, bool) or not isinstance(
                    value, (int, float) if info.type is float else info.type
                ):
                    raise ValueError(value)
                info.check(value)
            except ValueError:
                lines.append(
                    f"{name}={format_value(value)} is not legal. Try: {option(name)} with "
                    f"{info.legal}"
                )
        return lines


@functools.cache
def fields() -> Mapping[str, Field]:
    """Return the table: the fields of RunSpec by name, in their order."""
    return {
        info.field: Field(**vars(info), **info.limits["row"]) for info in parameter_infos(RunSpec)
    }


def option(field: str) -> str:
    """The command-line option of the field."""
    return fields()[field].option


CHAIN = "pre_aggregators"
"""The field that names a chain of components."""
SHORT: Mapping[str, str] = {
    field_info.short: name for name, field_info in fields().items() if field_info.short
}
"""Fields by their short names ``lr`` and ``pre``, which are legal everywhere."""


def full_name(name: str) -> str:
    """Return the name of the field that ``name`` stands for; any other name unchanged."""
    return SHORT.get(name, name)


def canonical(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the full names of their fields; ``aggregator: nnm+cwtm`` becomes a chain and
    a rule.

    Raises:
        SpecError: A field has two values.
    """
    full: dict[str, Any] = {}
    for name, value in values.items():
        if full_name(name) in full:
            raise SpecError(
                f"{name}={value}: {full_name(name)} is given twice, by two names. Try: one of them"
            )
        full[full_name(name)] = value
    rule = full.get("aggregator")
    if isinstance(rule, str) and len(parts := split_text(rule, PLUS)) > 1:
        if full.get(CHAIN) not in (None, "none", "+".join(parts[:-1])):
            raise SpecError(
                f"aggregator={rule}: it has pre-aggregators, and so has "
                f"{CHAIN}={full[CHAIN]}. Try: one of them"
            )
        full |= {CHAIN: "+".join(parts[:-1]), "aggregator": parts[-1]}
    return full


COMPONENTS: Mapping[str, str] = {
    name: field_info.component
    for name, field_info in fields().items()
    if field_info.component is not None
}
"""The registry of each field that names components."""
