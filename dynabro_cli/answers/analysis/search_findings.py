"""Results of a search: the best trials with their repetitions, as values and as words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from dynabro_cli.answers.analysis.diverged import DIVERGED, counted_as
from dynabro_cli.answers.analysis.paired_tests import mean_and_std
from dynabro_cli.answers.analysis.selection import sweep_text
from dynabro_cli.core.errors import SpecError, many
from dynabro_cli.experiment.comparison import CodeComparison, compare
from dynabro_cli.experiment.grid.goals import GOALS
from dynabro_cli.experiment.grid.search import Search
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.search.study import Study, best_of, repeated_of
from dynabro_cli.runs.store.read.searches import RunEnd, Trial, codes_of, ends_of, trials_of

BEST = 10
"""Trials of the final table."""


@dataclass(frozen=True)
class Found:
    """A trial among the best.

    Attributes:
        trial: The stored trial.
        choices: Its fields of the space, as texts.
        run: Its run with the first seed, or the worst of its repetitions for the first trial.
        value: The value that the search saw: a minimum over many trials, so optimistic.
        repeated: Values of the repetitions, one per seed of ``then``; empty if they have not all
            ended.
    """

    trial: Trial
    choices: Mapping[str, str]
    run: Run
    value: float
    repeated: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """The value to report: the mean over the repetitions."""
        return mean_and_std(self.repeated)[0] if self.repeated else None

    @property
    def std(self) -> float | None:
        return mean_and_std(self.repeated)[1] if self.repeated else None


@dataclass(frozen=True)
class Findings:
    """Results of one search of a file.

    Attributes:
        name: The search.
        counts: Number of trials by status.
        best: The best trials; with repetitions the first ones are ordered by these.
        importances: Weight of each choice for being among the best trials, as shares; empty with
            too few trials.
        repetitions: Number of the best trials that ``then`` repeats.
        untried: Choices of ``first`` that no trial has, as texts.
    """

    name: str
    counts: Mapping[str, int]
    best: tuple[Found, ...]
    importances: Mapping[str, float]
    repetitions: int
    untried: tuple[str, ...]

    @property
    def problem(self) -> str | None:
        """The reason that the search has no result, or not all repetitions; None if nothing
        failed.
        """
        failed = self.counts.get("failed", 0)
        if failed and not self.best:
            return f"{self.name}: no trial has a value, and {failed} failed"
        without = self.repetitions - sum(bool(trial.repeated) for trial in self.best)
        return (
            f"{self.name}: {many(without, 'repetition')} of the best trials failed"
            if without
            else None
        )


def code_of(search: Search, connection: Connection) -> CodeComparison:
    """Compare the code of the runs of a search's trials with the current code."""
    rows = (row for name, _ in search.points() for row in trials_of(connection, name))
    codes = codes_of(connection, {key for row in rows for key in row.run_keys})
    return compare((code, 1) for code in codes.values())


def findings(search: Search, connection: Connection) -> list[Findings]:
    """Return the stored results of each search of a file."""
    return [
        _findings(search, Study(search, name, fixed), connection) for name, fixed in search.points()
    ]


def _findings(search: Search, study: Study, connection: Connection) -> Findings:
    rows = trials_of(connection, study.name)
    study.check(rows)
    counts = {
        status: sum(row.status == status for row in rows)
        for status in dict.fromkeys(row.status for row in rows)
    }
    repeated = repeated_of(search, study, rows) if search.then is not None else []
    best = list({row.number: row for row in (*best_of(search, rows, BEST), *repeated)}.values())
    then, sign = search.then, -1 if search.maximize else 1
    repeats = (
        {row.number: study.again(row, then.seeds) for row in repeated} if then is not None else {}
    )
    ends = ends_of(connection, [run.key for runs in repeats.values() for run in runs], search.goal)
    best_trials = [_found(row, study, search, repeats.get(row.number, []), ends) for row in best]
    # stable: others stay in order
    best_trials.sort(
        key=lambda trial: (0, sign * trial.mean) if trial.mean is not None else (1, 0.0)
    )
    # before untried and importances, which know only the trials that the study has absorbed
    study.absorb(rows, {})
    untried = tuple(
        ", ".join(f"{key}={value}" for key, value in choices.items()) for choices in study.untried()
    )
    return Findings(
        study.name, counts, tuple(best_trials), study.importances(), len(repeats), untried
    )


def _found(
    row: Trial, study: Study, search: Search, repeats: Sequence[Run], ends: Mapping[str, RunEnd]
) -> Found:
    goal = GOALS[search.goal]
    values = [
        counted_as(
            goal.final or goal.evaluated, repeat.fields["task"], repeat.fields["model"], None
        )
        if end.status == DIVERGED
        else end.value
        for repeat in repeats
        if (end := ends.get(repeat.key)) is not None and end.value is not None
    ]
    complete = len(values) == len(repeats) > 0
    choices = study.choices(row.parameters)
    sign = -1 if search.maximize else 1
    run = study.again(row, search.seeds[:1])[0]
    if complete:  # the run that shows the finding most clearly
        run = repeats[min(range(len(repeats)), key=lambda place: sign * values[place])]
    return Found(row, choices, run, row.value_or_inf, tuple(values) if complete else ())


def as_sweep(search: Search, findings: Sequence[Findings]) -> str:
    """Return the best trial of each search as a sweep in YAML, on the whole training set, with the
    seeds of ``then``.

    Raises:
        SpecError: The search does not optimise a number on held-out samples, or no trial of a
            search has a value.
    """
    if not search.goal.startswith("validation"):
        way = "maximize" if search.maximize else "minimize"
        raise SpecError(
            f"{way}={search.goal}: the test set is not for choosing. Try: maximize: "
            "validation_accuracy"
        )
    empty = [search_findings.name for search_findings in findings if not search_findings.best]
    if empty:
        raise SpecError(f"{empty[0]}: no trial has a value. Try: dynabro search, to its end")
    points = [
        {**fixed, **search_findings.best[0].choices}
        for (_, fixed), search_findings in zip(search.points(), findings, strict=True)
    ]
    chosen = [
        {name: text for name, text in point.items() if name != "validation"} for point in points
    ]
    return sweep_text(search.sweep, {}, chosen, search.then.seeds if search.then else search.seeds)


def in_words(search: Search, findings: Findings) -> list[str]:
    """Return sentences about a search: its result, how much to believe it, and what mattered."""
    title, total = GOALS[search.goal].title, sum(findings.counts.values())
    word = "highest" if search.maximize else "lowest"
    if not findings.best:
        return [f"{total} trials, and none has a value"]
    first = findings.best[0]
    spec = ", ".join(f"{name}={text}" for name, text in first.choices.items())
    lines = []
    if first.mean is None:
        lines.append(f"{word} {title} of {total} trials: {first.value:.4g}, with {spec}")
        advice = "" if search.then else ". Try: the key then in its file, which repeats the best"
        lines.append(f"this value is optimistic: the best of many noisy trials{advice}")
    else:
        spread = "" if first.std is None else f" (standard deviation {first.std:.4g})"
        lines.append(
            f"{word} {title}: {first.mean:.4g}{spread} over {len(first.repeated)} seeds, with "
            f"{spec}"
        )
        lines.append(
            f"found as trial {first.trial.number} of {total}, where its value was "
            f"{first.value:.4g}: the best of many noisy "
            "trials is optimistic, so the repeated seeds count"
        )
    lines += [
        f"first: no trial has {choices}, of which no run can be made"
        for choices in findings.untried
    ]
    if findings.importances:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in findings.importances.items())
        lines.append(f"importance of choices for the best tenth of the trials: {shares}")
    return lines
