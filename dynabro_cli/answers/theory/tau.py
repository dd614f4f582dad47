"""Measurement of the ratio that ``dynabro:filter=adaptive`` compares with tau, when all workers are
honest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from dynabro_cli.components.methods._api import MeansMethod, Plan
from dynabro_cli.components.methods._spread import spread_of
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.vectors.lengths import length
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.simulation.setup import simulate_run

METHOD = "dynabro:filter=adaptive,tau=1e30"
"""The method with the adaptive filter, and a limit that accepts every finite correction."""
TAU = 2.0
"""The default of tau."""


class Ratios(NamedTuple):
    """The ratios of honest corrections.

    Attributes:
        rule: The aggregation rule.
        seeds: Number of runs.
        corrections: Number of corrections, one for each round of level 1 to jmax.
        median: Median ratio.
        q99: The 0.99 quantile.
        q999: The 0.999 quantile: the tau that rejects one honest correction in a thousand.
        largest: Largest ratio.
        above: Share of the corrections that the default tau rejects.
    """

    rule: str
    seeds: int
    corrections: int
    median: float
    q99: float
    q999: float
    largest: float
    above: float


def summary(rule: str, seeds: int, ratios: Sequence[float]) -> Ratios:
    """Return quantiles of the ratios; a ratio that is not finite counts as infinite."""
    values = np.nan_to_num(np.asarray(ratios, dtype=float), nan=np.inf)
    median, q99, q999 = (float(np.quantile(values, share)) for share in (0.5, 0.99, 0.999))
    return Ratios(
        rule,
        seeds,
        len(values),
        median,
        q99,
        q999,
        float(values.max()),
        float((values > TAU).mean()),
    )


def honest_ratios(spec: RunSpec, data_dir: Path) -> list[float]:
    """Return |a_J - a_{J-1}| 2^(J/2)/rho of every correction of a run, rho of the same round.

    Args:
        spec: The run, with the method ``METHOD``.
        data_dir: The folder of data sets.

    Raises:
        SpecError: The spec is not legal, or the run has no correction.

    Example:
        >>> from dynabro_cli.experiment.build import data_directory
        >>> small = {"model": "logistic", "workers": 5, "byzantine": 1, "budget": 40}
        >>> spec = RunSpec(method=METHOD, attack="none", **small)
        >>> 0 < min(honest_ratios(spec, data_directory(None))) < 2
        True
    """
    run = resolve(spec, data_dir)
    method, seen = run.parts.method, []
    if not isinstance(method, MeansMethod) or method.spread is not spread_of:
        raise SpecError(
            f"method={spec.method}: it has no filter by the spread of a round. Try: {METHOD}"
        )

    direct = method.direct

    def noted(
        aggregates: Sequence[Tensor], plan: Plan, spread: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        if len(aggregates) > 1:
            seen.append(
                float(length(aggregates[2] - aggregates[1]) * math.sqrt(plan.prefixes[-1]) / spread)
            )
        return direct(aggregates, plan, spread)

    run = run.with_parts(run.parts._replace(method=dataclasses.replace(method, direct=noted)))
    for _ in simulate_run(run, data_dir=data_dir, device="cpu", compile="off"):
        pass
    if not seen:
        raise SpecError(f"budget={spec.budget}: no round has a correction. Try: a larger budget")
    return seen


def measure(
    spec: RunSpec, rules: Iterable[str], seeds: Iterable[int], data_dir: Path
) -> Iterator[Ratios]:
    """Yield the ratios of each rule over runs with these seeds, equal to ``spec`` otherwise."""
    numbers = list(seeds)
    for rule in rules:
        runs = [dataclasses.replace(spec, aggregator=rule, seed=seed) for seed in numbers]
        yield summary(
            rule, len(runs), [ratio for run in runs for ratio in honest_ratios(run, data_dir)]
        )
