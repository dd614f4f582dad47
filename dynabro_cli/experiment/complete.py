"""A spec in which every field has a value, and what follows from its fields: numbers, and settings
of parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.methods._api import MethodSetting
from dynabro_cli.components.partitions._api import server_samples
from dynabro_cli.components.tasks._api import Task
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import np
from dynabro_cli.core.registration import format_value
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.spec import RunSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class CompleteSpec(RunSpec):
    """A RunSpec whose every field has a value; ``model`` is None for tasks without a model. Made by
    ``resolve``.

    The fields here may be None in a RunSpec: their defaults follow from the task, or from other
    fields.
    """

    aggregator: str
    attack_entry: str
    workers: int
    byzantine: int
    budget: int
    batch_size: int
    learning_rate: float
    lr_drop: str
    weight_decay: float
    eval_every: int


def answering_count(participation: float, workers: int) -> int:
    """Return the number of workers that answer in a round, n = ceil(participation m).

    Example:
        >>> answering_count(0.28, 25), answering_count(0.5, 17)
        (7, 9)
    """
    # so that 0.28 x 25 is 7, despite binary fractions
    return max(1, math.ceil(participation * workers - 1e-9))


def answering(seed: int, participation: float, workers: int, round_: int) -> np.ndarray[Any, Any]:
    """Return the n workers that answer in a round, drawn uniformly: their numbers from 0, in
    ascending order.

    The workers depend only on the seed and the round. They have a separate random stream, so
    identities and mini-batches do not change.
    """
    count = answering_count(participation, workers)
    if count == workers:
        return np.arange(workers)
    return np.sort(
        Streams(seed).generator("participation", round_).choice(workers, count, replace=False)
    )


def held_out(share: float, samples: int) -> int:
    """Return the number of held-out samples: ``share`` of all, rounded; at least one if ``share``
    is not 0.
    """
    return max(1, round(share * samples)) if share else 0


def workers_samples(spec: CompleteSpec, samples: int) -> int:
    """Return the number of training samples that are left for the workers, at least 0."""
    return max(0, samples - held_out(spec.validation, samples) - server_samples(spec.data))


def samples_each(spec: CompleteSpec, task: Task) -> int | None:
    """Return the number of training samples of a worker (the average if they differ); None if it is
    unknown.
    """
    if task.train_size is None:
        return None
    samples = workers_samples(spec, task.train_size)
    return samples if spec.data.partition(":")[0] == "iid" else -(-samples // spec.workers)


def method_setting(spec: CompleteSpec, task: Task) -> MethodSetting:
    """Return the method's first setting; its number of workers is the number that answer."""
    samples, size = samples_each(spec, task), spec.batch_size
    batches = None if samples is None else -(-samples // size)
    return MethodSetting(chain_setting(spec).workers, spec.budget, spec.learning_rate, batches)


def chain_setting(spec: CompleteSpec, threshold: float | None = None) -> AggregatorSetting:
    """Return the setting of the aggregation chain: n workers answer, and f <= (n - 1)/2 of them are
    Byzantine.

    A round's sample may have more Byzantine workers, up to the declared number, and so a Byzantine
    majority.
    """
    count, declared = answering_count(spec.participation, spec.workers), spec.byzantine
    byzantine = declared if count == spec.workers else min(declared, (count - 1) // 2)
    return AggregatorSetting(count, byzantine, threshold, spec.seed)


def parse_drops(text: str) -> tuple[tuple[float, float], ...]:
    """Read ``0.5:0.1,0.8:0.1``, or ``none``, as (fraction of the budget, factor) pairs; raise
    SpecError for anything else.
    """
    if text == "none":
        return ()
    try:
        drops = tuple(
            (float(share), float(right))
            for share, right in (part.split(":") for part in text.split(","))
        )
    except ValueError:
        drops = ((-1.0, 0.0),)
    if not all(0 < fraction < 1 and 0 < factor < math.inf for fraction, factor in drops):
        raise SpecError(
            f"lr_drop={text} is not legal; it must be FRACTION:FACTOR with 0 < FRACTION < 1 "
            "and FACTOR > 0, "
            "or none. Try: --lr-drop 0.8:0.1"
        )
    return tuple(sorted(drops))


def format_drops(drops: Sequence[tuple[float, float]]) -> str:
    """Write what ``parse_drops`` reads, in order of the fractions."""
    return (
        ",".join(f"{format_value(fraction)}:{format_value(factor)}" for fraction, factor in drops)
        or "none"
    )
