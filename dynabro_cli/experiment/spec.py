"""RunSpec: everything that determines the numbers of a run, and nothing else."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dynabro_cli.components import ParameterInfo, format_value, parameter, parameter_infos
from dynabro_cli.errors import SpecError, did_you_mean

MOST_WORKERS = 1_000_000
"""So many masks, numbers and tables of the workers can be made at once, wherever a spec is looked at."""


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """The description of one run. Components are written ``name:key=value,key=value``; None stands for the task's default.

    Example:
        >>> RunSpec(task="digits", method="momentum:beta=0.99", switching="periodic:K=20", seed=1).seed
        1
    """

    task: str = parameter("digits", help="data or objective")
    model: str | None = parameter(None, help="network; auto: the task's")
    method: str = parameter("dynabro", help="training method")
    aggregator: str | None = parameter(None, help="robust aggregation rule; auto: cwtm, or what the method wants: mfm or mean")
    pre_aggregators: str = parameter("none", help="chain before the rule, joined by +, such as nnm; none: no chain")
    attack: str = parameter("sf", help="what Byzantine workers send")
    attack_entry: str | None = parameter(
        None,
        choices=("gradient", "message", "state", "data"),
        help="where the attack acts: before momentum, on what is sent, on what is sent and kept, or on the data; "
        "auto: data for attacks on data such as label-flip, else gradient",
    )
    switching: str = parameter("periodic:K=10", help="identity-switching strategy")
    clock: str = parameter(
        "round",
        choices=("round", "computation"),
        help="what the strategy counts; by computation, identities can change within a round",
    )
    workers: int | None = parameter(None, minimum=1, maximum=MOST_WORKERS, help="number of workers, m")
    byzantine: int | None = parameter(None, minimum=0, help="declared number of Byzantine workers, f")
    budget: int | None = parameter(None, minimum=1, help="gradient computations that each worker makes in the run")
    batch_size: int | None = parameter(None, minimum=1, help="samples of one gradient computation, B")
    learning_rate: float | None = parameter(None, above=0, help="eta, or eta_0 of AdaGrad-Norm")
    lr_rule: str = parameter("fixed", choices=("fixed", "adagrad-norm"), help="learning rate as given, or AdaGrad-Norm")
    lr_drop: str | None = parameter(
        None, help="FRACTION:FACTOR, comma-separated: at this fraction of the budget, multiply by it; none: never"
    )
    weight_decay: float | None = parameter(None, minimum=0, help="added to the aggregated gradient at the server")
    eval_every: int | None = parameter(None, minimum=1, help="gradient computations between two evaluations")
    seed: int = parameter(0, minimum=0, maximum=2**63 - 1, help="of all random streams")
    precision: str = parameter(
        "fp32",
        choices=("fp32", "tf32", "bf16"),
        help="what gradients are computed in: single precision, its products in TensorFloat-32 (GPUs), or bfloat16",
    )
    participation: float = parameter(
        1.0, above=0, maximum=1, help="share of the workers that answer in a round, drawn uniformly for each round"
    )
    data: str = parameter("iid", help="how the training set is shared out among the workers")
    validation: float = parameter(
        0.0, minimum=0, below=1, help="share of the training set that is held out to choose by, and never trained on"
    )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunSpec:
        """Build a spec of ``values``; raise SpecError that lists every unknown field."""
        infos = fields()
        problems = [
            f"unknown field {name!r}{did_you_mean(str(name), infos)}; legal: {', '.join(infos)}"
            for name in values
            if name not in infos
        ]
        if problems:
            raise SpecError(problems)
        return cls(**values)

    @classmethod
    def from_text(cls, values: Mapping[str, str]) -> RunSpec:
        """Build a spec of values as they are typed; one that is no number where it must be is kept for ``problems``."""
        typed: dict[str, Any] = {}
        for name, text in values.items():
            try:
                typed[name] = fields()[name].parse(text)
            except (KeyError, ValueError):
                typed[name] = text
        return cls.from_mapping(typed)

    def problems(self) -> list[str]:
        """What is wrong with the single fields, a line each: wrong type, or out of range."""
        found = []
        for name, info in fields().items():
            value = getattr(self, name)
            if value is None and info.optional:
                continue
            try:
                if isinstance(value, bool) or not isinstance(value, (int, float) if info.type is float else info.type):
                    raise ValueError(value)
                info.check(value)
            except ValueError:
                found.append(f"{name}={format_value(value)} is not legal; type {option(name)} with {info.legal}")
        return found


@functools.cache
def fields() -> Mapping[str, ParameterInfo]:
    """The fields of RunSpec by name, with their types, ranges and meanings."""
    return {info.field: info for info in parameter_infos(RunSpec)}


def option(field: str) -> str:
    """The command-line option that sets ``field``."""
    short = {"learning_rate": "lr", "pre_aggregators": "pre"}
    return "--" + short.get(field, field).replace("_", "-")


def parse_drops(text: str) -> tuple[tuple[float, float], ...]:
    """Read ``0.5:0.1,0.8:0.1``, or ``none``, as (fraction of the budget, factor) pairs; raise SpecError for anything else."""
    if text == "none":
        return ()
    try:
        drops = tuple((float(left), float(right)) for left, right in (part.split(":") for part in text.split(",")))
    except ValueError:
        drops = ((-1.0, 0.0),)
    if not all(0 < fraction < 1 and 0 < factor < math.inf for fraction, factor in drops):
        raise SpecError(
            f"lr_drop={text} is not legal; it must be FRACTION:FACTOR with 0 < FRACTION < 1 and FACTOR > 0, "
            "or none; type --lr-drop 0.8:0.1"
        )
    return tuple(sorted(drops))


def format_drops(drops: Sequence[tuple[float, float]]) -> str:
    """Write what ``parse_drops`` reads, in order of the fractions."""
    return ",".join(f"{format_value(fraction)}:{format_value(factor)}" for fraction, factor in drops) or "none"
