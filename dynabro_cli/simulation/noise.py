"""Measure the noise bound V if a method needs it and it is not given."""

from __future__ import annotations

from dynabro_cli.errors import SpecError
from dynabro_cli.methods._api import NOISE_COMPUTATIONS
from dynabro_cli.simulation.problem import Problem
from dynabro_cli.switching._api import Switching
from dynabro_cli.vectors.lengths import lengths
from dynabro_cli.vectors.means import weighted

NOISE_ROUND = 2**40  # the counter of the draws that measure V, out of reach of any round's


def measure_noise(problem: Problem, switching: Switching) -> float:
    """Return V, the largest deviation of an honest one-batch gradient from the honest mean, over some draws at x_1.

    Spends ``NOISE_COMPUTATIONS`` gradient computations of each worker.

    Raises:
        SpecError: There is no noise, or fewer than two workers are honest at the start.
    """
    largest = 0.0
    for computation in range(NOISE_COMPUTATIONS):
        computed = (~switching.mask(0)).nonzero()[:, 0]
        honest = problem.sum_gradients(NOISE_ROUND, (computation,), computed, None)[: len(computed)]
        if len(honest):
            largest = max(largest, float(lengths(honest - weighted(honest, honest.new_ones(len(honest)))).max()))
    problem.observed()
    if not largest > 0:
        raise SpecError("noise_bound=auto found no noise among the honest workers at the start. Try: noise_bound=V")
    return largest
