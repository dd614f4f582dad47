"""What the method and the aggregation chain of a run need to know of each other and of the run."""

from __future__ import annotations

from typing import Any

from dynabro_cli.aggregators._api import Aggregator, AggregatorSetting
from dynabro_cli.components import Component
from dynabro_cli.errors import SpecError
from dynabro_cli.methods._api import Method, MethodSetting
from dynabro_cli.pre_aggregators._chain import build_chain
from dynabro_cli.spec import RunSpec
from dynabro_cli.tasks._api import Task


def method_setting(spec: RunSpec, task: Task | None) -> MethodSetting:
    """What the method knows of a completed spec before the aggregation chain is known, and V."""
    samples, size = task.train_size if task else None, spec.batch_size
    batches = -(-samples // size) if samples and size else None
    return MethodSetting(spec.workers or 0, spec.budget or 0, 0.0, None, spec.learning_rate, batches)


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
