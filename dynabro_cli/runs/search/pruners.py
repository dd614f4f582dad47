"""Rules that end a trial before all of its runs have ended."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import optuna
from optuna.trial import TrialState

from dynabro_cli.experiment.grid.search import SEEDS

STARTUP = 5
"""Finished trials before the median prunes."""


class LastValuePruner(optuna.pruners.BasePruner):
    """End a trial by its last value, compared with the values of others at the same step.

    Optuna's pruners compare a trial's best value so far: an attacked run has its lowest accuracy at
    its beginning, so that it would never be ended.

    Args:
        states: States of the other trials; None for all.
        ends: Returns True if a trial ends whose value is the first argument, where the others have
            the second; less is better.
    """

    def __init__(
        self,
        states: tuple[TrialState, ...] | None,
        ends: Callable[[float, np.ndarray], bool],
    ) -> None:
        self._states, self._ends = states, ends

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        """Return True if the trial ends at its last step."""
        step = trial.last_step
        values = [
            other.intermediate_values[step]
            for other in study.get_trials(deepcopy=False, states=self._states)
            if other.number != trial.number and step in other.intermediate_values
        ]
        if step is None or not values:
            return False
        sign = 1 if study.direction == optuna.study.StudyDirection.MINIMIZE else -1
        return self._ends(sign * trial.intermediate_values[step], sign * np.array(values))


def worse_than_median(value: float, others: np.ndarray) -> bool:
    """Return True if a value is worse than the median of ``STARTUP`` others or more."""
    return len(others) >= STARTUP and value > float(np.nanmedian(others))


def not_in_best_quarter(value: float, others: np.ndarray) -> bool:
    """Return True if at least a quarter of the others are as good."""
    return 4 * int((others <= value).sum()) >= len(others)


BY_NAME: dict[str, optuna.pruners.BasePruner] = {
    "none": optuna.pruners.NopPruner(),
    "median": LastValuePruner((TrialState.COMPLETE,), worse_than_median),
    "successive-halving": optuna.pruners.SuccessiveHalvingPruner(),
    SEEDS: LastValuePruner(None, not_in_best_quarter),
}
"""Optuna's form of each legal ``pruner`` of a search's file."""
