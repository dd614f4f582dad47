"""Optuna's study of one search: rebuilt from stored trials, so that Optuna needs no database.

Proposal n depends on the sampler's seed, n, and the trials before it only. So a search that is
killed and resumed proposes what an undisturbed one proposes, if trials follow one another.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import TrialState

from dynabro_cli.core.errors import PluginError, SpecError
from dynabro_cli.experiment.grid.search import Search
from dynabro_cli.experiment.grid.sweep_file import Values
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.search import pruners
from dynabro_cli.runs.store.read.searches import Trial

MOST_ATTEMPTS = 1000
"""Most proposals in a row that no run can be made of."""
NEW_ATTEMPTS = 20
"""Proposals until one that was made before is accepted: a space without ranges may have no
other.
"""
MODELLED = 2
"""Proposals of the sampler itself; the following ones are uniform, because its model may know
nothing that is new and legal.
"""
STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Study:
    """Proposals, and what became of them.

    Args:
        search: The search.
        name: The name of its trials in the database.
        fixed: The fields that all trials share.
    """

    def __init__(self, search: Search, name: str, fixed: Values) -> None:
        self.name, self._search, self._fixed = name, search, fixed
        self._space = search.space
        self._study = optuna.create_study(
            direction="maximize" if search.maximize else "minimize",
            pruner=pruners.BY_NAME[search.pruner],
        )
        self._trials: dict[int, optuna.Trial] = {}
        self._ended: set[int] = set()
        # key of the first run, and choices, of each trial
        self._made: dict[int, tuple[str, Mapping[str, Any]]] = {}
        # kept between proposals, because it remembers trials and samplers do not
        self._shared = IntersectionSearchSpace(include_pruned=True)
        self._grid = list(self._combinations())[: search.trials] if search.sampler == "grid" else []
        self._first = list[Mapping[str, Any]](map(self._space.parameters, search.first))[
            : search.trials
        ]

    @functools.cached_property
    def steps_a_run(self) -> int:
        """Most evaluations of a run, by the first legal combination: the steps of the pruner."""
        for _, run in self._search.combinations(self._fixed, probe=0):
            if isinstance(run, Run):
                return run.spec.budget // run.spec.eval_every + 2
        return 1

    def check(self, rows: Sequence[Trial]) -> None:
        """Raise SpecError if the choices of a stored trial are not in the space, or do not give the
        trial's runs.
        """
        for row in rows:
            try:
                same = tuple(run.key for run in self.again(row, self._search.seeds)) == row.run_keys
            except ValueError:  # Optuna's, for a choice that is missing or has another kind
                same = False
            if not same:
                raise SpecError(
                    f"{self.name}: trial {row.number} was made by another search of this name, "
                    "because its choices do not give "
                    "its runs. Try: dynabro search --name NEW"
                )

    def wants(self, number: int) -> bool:
        """Return True if the search has a trial of this number; ``first`` and a grid are made whole
        after any trials.
        """
        return self._is_free(number) or self._asked(number) is not None

    def _is_free(self, number: int) -> bool:
        """Return True if the sampler may propose a trial."""
        return self._search.sampler != "grid" and number < (self._search.trials or 0)

    def _asked(self, number: int) -> Mapping[str, Any] | None:
        """Return the choices that a new trial must have: a combination of the grid, or choices of
        ``first``; None for any.
        """
        if self._search.sampler == "grid":
            made = {key for key, _ in self._made.values()}
            return next((choices for key, choices in self._grid if key not in made), None)
        return (
            self._first[number] if number < len(self._first) else next(iter(self.untried()), None)
        )

    def untried(self) -> list[Mapping[str, Any]]:
        """Return the choices of ``first`` that no trial has."""
        made = [choices.items() for _, choices in self._made.values()]
        return [
            asked for asked in self._first if not any(asked.items() <= choices for choices in made)
        ]

    def is_first(self, parameters: Mapping[str, Any]) -> bool:
        """Return True if a trial's parameters are a choice of ``first``."""
        return any(asked.items() <= parameters.items() for asked in self._first)

    def absorb(
        self, rows: Sequence[Trial], reports: Mapping[int, Sequence[tuple[int, float]]]
    ) -> None:
        """Repeat what the study does not know of the stored trials, in their order.

        Args:
            rows: All trials of this search.
            reports: Steps and values at which the pruner was asked, by the trial's number.
        """
        for row in rows:
            if row.number not in self._trials:
                self._study.enqueue_trial(row.parameters)
                # its state is in the trials that it has asked for
                if self._search.sampler == "cmaes":
                    self._study.sampler = self._sampler(row.number, 0)
                else:  # the parameters are known: no model of the other trials is needed
                    self._study.sampler = optuna.samplers.RandomSampler(seed=0)
                trial = self._study.ask()
                if self._search.sampler == "cmaes":
                    # Optuna samples on demand, and fixed parameters demand nothing
                    _ = trial.relative_params
                self._space.chosen(trial)
                self._trials[row.number] = trial
                self._made[row.number] = row.run_keys[0], row.parameters
                for step, value in reports.get(row.number, ()):
                    self.prunes(row.number, step, value)
            if row.status != "running" and row.number not in self._ended:
                self.tell(row.number, row.status, row.value)

    def __contains__(self, number: int) -> bool:
        return number in self._trials

    def forget(self, number: int) -> None:
        """Drop a proposal that is not made."""
        # Optuna keeps each trial that it was asked for; its samplers learn nothing from failed ones
        self._study.tell(self._trials.pop(number), state=TrialState.FAIL)
        del self._made[number]

    def propose(self, number: int) -> tuple[dict[str, Any], list[Run]] | None:
        """Return the parameters of a new trial, and its runs, one per seed; None if no run can be
        made of choices of ``first``.

        Proposals that cannot run are passed over, and so are those that were made before, unless
        there seem to be no others.

        Raises:
            SpecError: No proposal of many can run.
        """
        problem, asked, free = "", self._asked(number), self._is_free(number)
        most = MOST_ATTEMPTS if free else NEW_ATTEMPTS
        for attempt in range(most):
            self._study.sampler = self._sampler(number, attempt)
            if asked is not None and not (attempt and free):
                self._study.enqueue_trial(dict(asked))
            trial = self._study.ask()
            texts = {**self._fixed, **self._space.chosen(trial)}
            try:
                runs = self._search.runs(texts, self._search.seeds)
            except (SpecError, PluginError) as error:
                problem, runs = str(error).partition("\n")[0], []
            again = (
                free
                and attempt < NEW_ATTEMPTS
                and any(runs[0].key == key for key, _ in self._made.values() if runs)
            )
            if not runs or again:
                self._study.tell(trial, state=TrialState.FAIL)
                continue
            self._trials[number] = trial
            parameters = dict(trial.params)
            self._made[number] = runs[0].key, parameters
            return parameters, runs
        if not free and asked in self._first:
            self._first.remove(asked)
            return None
        raise SpecError(
            f"{self.name}: {most} proposals in a row cannot run, the last one because {problem}"
        )

    def again(self, trial: Trial, seeds: Sequence[int]) -> list[Run]:
        """Return the runs of a stored trial with other seeds."""
        return self._search.runs({**self._fixed, **self.choices(trial.parameters)}, seeds)

    def choices(self, parameters: Mapping[str, Any]) -> dict[str, str]:
        """Return the fields of a trial's choices, as texts."""
        return self._space.stored(parameters)

    def prunes(self, number: int, step: int, value: float) -> bool:
        """Report a value during a trial; return True if the pruner ends the trial."""
        trial = self._trials[number]
        trial.report(value, step)
        return trial.should_prune()

    def tell(self, number: int, status: str, value: float | None) -> None:
        """Report the end of a trial. A finished one without a value is infinite."""
        self._ended.add(number)
        result = None
        if status == "finished":
            result = math.inf if value is None else value
        self._study.tell(self._trials[number], result, state=STATES[status])

    def importances(self) -> dict[str, float]:
        """Return how much each choice that all trials have decides whether a trial is among the
        best tenth, as shares by PED-ANOVA (Watanabe, Bansal & Hutter, IJCAI 2023); empty with too
        few trials.
        """
        finite = [
            trial
            for trial in self._study.trials
            if trial.state == TrialState.COMPLETE and math.isfinite(trial.value or 0)
        ]
        if len(finite) < 4 or len({trial.value for trial in finite}) < 2:
            return {}
        study = optuna.create_study(direction=self._study.direction)
        study.add_trials(finite)
        # Optuna's default, fANOVA, takes minutes for 100 trials with 19 attacks.
        return optuna.importance.get_param_importances(
            study,
            evaluator=optuna.importance.PedAnovaImportanceEvaluator(),
            params=list(optuna.search_space.intersection_search_space(finite)),
        )

    def _sampler(self, number: int, attempt: int) -> BaseSampler:
        """Return a sampler whose draws depend on the seed and the trial only, and not on draws
        before a kill.
        """
        # mixed, not added: trial 1 with seed 0 would draw the same as trial 0 with seed 1
        seed = int(
            np.random.SeedSequence([self._search.sampler_seed, number, attempt]).generate_state(1)[
                0
            ]
        )
        if self._search.sampler == "tpe" and attempt < MODELLED:
            return _JointTpe(self._shared, seed)
        if self._search.sampler == "cmaes":
            return optuna.samplers.CmaEsSampler(seed=seed)
        return optuna.samplers.RandomSampler(seed=seed)

    def _combinations(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the parameters of every legal combination of the space, each with the key of its
        first run.
        """
        for entries, run in self._search.combinations(self._fixed):
            if isinstance(run, Run):
                pairs = zip(self._space.axes, entries, strict=True)
                yield (
                    run.key,
                    {axis.label: entry.label for axis, entry in pairs if len(axis.entries) > 1},
                )


class _JointTpe(optuna.samplers.TPESampler):
    """TPE on the parameters that all trials share, jointly."""

    def __init__(self, shared: IntersectionSearchSpace, seed: int) -> None:
        super().__init__(seed=seed)
        self._shared = shared

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that all trials share."""
        return self._shared.calculate(study)


def best_of(search: Search, rows: Sequence[Trial], count: int | None = None) -> list[Trial]:
    """Return the best finished trials, best first; by default the number that ``then`` repeats.
    Equal ones stay in order.
    """
    count = (search.then.best if search.then else 1) if count is None else count
    sign = -1 if search.maximize else 1
    best: dict[tuple[str, ...], Trial] = {}
    for row in sorted(
        (row for row in rows if row.status == "finished"),
        key=lambda row: (sign * row.value_or_inf, row.number),
    ):
        best.setdefault(row.run_keys, row)  # a configuration that was proposed twice counts once
    return list(best.values())[:count]


def repeated_of(search: Search, study: Study, rows: Sequence[Trial]) -> list[Trial]:
    """Return the trials that ``then`` repeats: the best of all, then the best choices of ``first``
    that are not among them.
    """
    first = [row for row in rows if study.is_first(row.parameters)]
    chosen = [
        *best_of(search, rows),
        *best_of(search, first, search.then.first if search.then else 0),
    ]
    return list({row.run_keys: row for row in chosen}.values())
