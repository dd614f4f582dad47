"""Choice of hyper-parameters on a validation split, by the worst attack; never on the test set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dynabro_cli.answers.analysis.diverged import DIVERGED, counted_as
from dynabro_cli.answers.analysis.paired_tests import mean_and_std
from dynabro_cli.core.errors import NotFoundError, SpecError, did_you_mean
from dynabro_cli.core.limits import MOST_CHARACTERS
from dynabro_cli.core.registration import Component, format_value
from dynabro_cli.experiment.grid.plan import PlannedRuns
from dynabro_cli.experiment.grid.strict_yaml import as_yaml
from dynabro_cli.experiment.grid.sweep_file import Sweep
from dynabro_cli.experiment.label import cell, without_parameter
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.experiment.spec import fields
from dynabro_cli.runs.store.care.outputs import FileKind
from dynabro_cli.runs.store.open.engine import open_read_only
from dynabro_cli.runs.store.open.translation import shown
from dynabro_cli.runs.store.read.queries import query
from dynabro_cli.runs.store.tables import HAS_RESULT

SCORES = f"""
    SELECT run_key, status, validation_accuracy, task, model, code_digests
    FROM runs LEFT JOIN evaluations AS e ON e.run_id = runs.id AND e.round = runs.rounds
    WHERE {HAS_RESULT} AND (validation_accuracy IS NOT NULL OR status = '{DIVERGED}')
"""
SUFFIX = "-selected"
"""End of the name of a sweep of chosen runs."""
USUAL = 0.1
"""The held-out share that messages propose."""

Values = dict[str, Any]


class EndScore(NamedTuple):
    """End of a run: its status, and the accuracy on the validation split that counts."""

    status: str
    accuracy: float


@dataclass(frozen=True)
class Candidate:
    """Values of the chosen fields, and their scores.

    Attributes:
        values: Values of the chosen fields.
        worst: Values of the adversary's fields at which ``mean`` is lowest.
        mean: Validation accuracy at the end, over seeds; ``std`` with ddof 1, None for one seed.
        seeds: Number of seeds.
        diverged: Number of these runs that diverged.
        runs: All runs, not only those at ``worst``.
    """

    values: Values
    worst: Values
    mean: float
    std: float | None
    seeds: int
    diverged: int
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Selection:
    """A configuration, and its candidates from the best to the worst; of equal ones the sweep's
    first comes first.
    """

    configuration: Values
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


def choose(
    planned: PlannedRuns, scores: Mapping[str, EndScore], over: Sequence[str], worst: Sequence[str]
) -> list[Selection]:
    """Find, for each configuration of a sweep, the values of ``over`` whose worst accuracy over
    ``worst`` is highest.

    With a(h, w) the mean over seeds of the validation accuracy at a run's end, the choice is
    argmax_h min_w a(h, w). A configuration is a combination of the other fields of the grid.

    Differs from ByzFL's selection: it takes each run's best accuracy over time; this uses the final
    accuracy.

    Args:
        planned: The sweep.
        scores: Scores of all its runs, by key.
        over: Fields to choose, or parameters of components such as ``aggregator.tau``; the grid
            varies each of them.
        worst: Fields that an adversary chooses.

    Raises:
        SpecError: The fields are not legal, or the candidates of a configuration were not tried
            against the same values.
    """
    check_fields(planned, over, worst)
    apart = (*over, *worst)
    others = [name for name in _varied(planned) if name not in (*apart, "seed")]
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Run]]] = {}
    for run in planned.runs:
        groups.setdefault(_of(run, others, apart), {}).setdefault(_of(run, over), []).append(run)
    choices = []
    for configuration, tried in groups.items():
        _check_fair(
            others,
            configuration,
            [{(_of(run, worst), run.spec.seed) for run in runs} for runs in tried.values()],
        )
        candidates = [
            _candidate(dict(zip(over, values, strict=True)), runs, scores, worst)
            for values, runs in tried.items()
        ]
        ranked = sorted(candidates, key=lambda candidate: -_known(candidate.mean))
        choices.append(Selection(dict(zip(others, configuration, strict=True)), tuple(ranked)))
    return choices


def _known(mean: float) -> float:
    """Return a mean; less than any other if a run diverged on a task of unknown classes."""
    return -math.inf if math.isnan(mean) else mean


def _of(run: Run, names: Sequence[str], apart: Sequence[str] = ()) -> tuple[Any, ...]:
    """Return the run's values of fields and parameters; a component's text is without the
    parameters in ``apart``.
    """
    return tuple(_value(run, name, apart) for name in names)


def _value(run: Run, name: str, apart: Sequence[str]) -> Any:
    field, dot, key = name.partition(".")
    if dot:
        return _parameters(run, field).get(key)
    value = getattr(run.spec, field)
    for other in apart:
        key = other.partition(".")[2]
        if other == f"{field}.{key}" and key in _parameters(run, field):
            value = without_parameter(value, key)
    return value


def _parameters(run: Run, field: str) -> Mapping[str, Any]:
    """Return the parameters of a field's component; none unless the field has one component."""
    part = getattr(run, field, None)
    return part.mapping if isinstance(part, Component) else {}


def _candidate(
    values: Values, runs: Sequence[Run], scores: Mapping[str, EndScore], worst: Sequence[str]
) -> Candidate:
    by_worst: dict[tuple[Any, ...], list[EndScore]] = {}
    for run in runs:
        by_worst.setdefault(_of(run, worst), []).append(scores[run.key])
    spreads = {
        where: mean_and_std([score.accuracy for score in ends]) for where, ends in by_worst.items()
    }
    lowest = min(spreads, key=lambda where: _known(spreads[where][0]))
    return Candidate(
        values,
        dict(zip(worst, lowest, strict=True)),
        *spreads[lowest],
        seeds=len(by_worst[lowest]),
        diverged=sum(score.status == "diverged" for score in by_worst[lowest]),
        runs=tuple(runs),
    )


def _varied(planned: PlannedRuns) -> list[str]:
    """Return the fields that the grid sets, in its order."""
    return list(dict.fromkeys(name for axis in planned.sweep.grid for name in axis.fields))


def check_fields(planned: PlannedRuns, over: Sequence[str], worst: Sequence[str]) -> None:
    """Raise SpecError unless the grid varies all of ``over``, and ``worst`` are other fields."""
    legal = [name for name in _varied(planned) if name not in (*worst, "seed")]
    parameters = [
        name
        for name in (*over, *worst)
        if "." in name and len({_value(run, name, ()) for run in planned.runs}) > 1
    ]
    choice = f": {', '.join(legal)}" if legal else ", and it varies only fields of --worst"
    problems = [
        f"over={name} is not legal{did_you_mean(name, legal)}; it must be a field that the "
        f"grid varies{choice}"
        for name in over
        if name not in (*legal, *parameters)
    ]
    names = [name for name in fields() if name != "seed"]
    unknown = [name for name in worst if name not in (*names, *parameters)]
    problems += [
        f"worst={name} is not a field{did_you_mean(name, names)}. Try: --worst attack"
        for name in unknown
    ]
    if problems:
        raise SpecError(problems)


def _check_fair(
    names: Sequence[str], configuration: tuple[Any, ...], tried: Sequence[set[Any]]
) -> None:
    if any(cells != tried[0] for cells in tried):
        where = ", ".join(
            f"{name}={format_value(value)}"
            for name, value in zip(names, configuration, strict=True)
        )
        raise SpecError(
            f"the candidates{' of ' if where else ''}{where} are not tried against the same "
            "attacks and seeds, because "
            "the sweep excludes some. Try: without exclude"
        )


def read_scores(planned: PlannedRuns, database: str, command: str) -> dict[str, EndScore]:
    """Return the score of every run of a sweep, by key.

    Args:
        planned: The sweep.
        database: The database of results.
        command: The sweep and its settings, as typed.

    Raises:
        SpecError: Some runs have no held-out samples.
        NotFoundError: Some runs have no result.
    """
    without = [run for run in planned.runs if not run.spec.validation]
    if without:
        if without[0].model is None:
            raise SpecError(
                f"task {without[0].spec.task!r} has no accuracy to choose by; select is for "
                "tasks with a model"
            )
        more = f"{command} --set validation={USUAL}"
        raise SpecError(
            f"validation is 0 in {len(without)} of {len(planned.runs)} runs, and the test set "
            "is not for choosing. "
            f"Try: dynabro sweep {more}, then dynabro select {more}"
        )
    try:
        engine = open_read_only(database)
        rows = query(engine, SCORES).rows
        scores = {
            key: EndScore(
                status,
                counted_as("validation_accuracy", *run) if status == DIVERGED else accuracy,
            )
            for key, status, accuracy, *run in rows
        }
    except NotFoundError:
        scores = {}
    missing = [run for run in planned.runs if run.key not in scores]
    for run in missing:  # stored under another text of the same adversary
        same = next(
            (equivalent.key for equivalent in run.equivalents() if equivalent.key in scores), None
        )
        scores |= {} if same is None else {run.key: scores[same]}
    missing = [run for run in missing if run.key not in scores]
    if missing:
        first = cell(missing[0].fields)
        raise NotFoundError(
            f"{len(missing)} of {len(planned.runs)} runs have no result in {shown(database)}, "
            f"first {first}. Try: "
            f"dynabro sweep {command}, which makes them"
        )
    return scores


def _is_selected(path: Path) -> bool:
    """Return True for the text of ``as_sweep``, by its first line."""
    with path.open("rb") as file:
        line = file.readline(MOST_CHARACTERS).strip()
    return line.startswith(b"name: ") and line.endswith(SUFFIX.encode())


SELECTED = FileKind("a sweep that dynabro select wrote", _is_selected)


def as_sweep(planned: PlannedRuns, choices: Sequence[Selection]) -> str:
    """Return the chosen runs as a sweep in YAML, with the whole training set: all their points,
    with every seed.
    """
    sweep = planned.sweep
    varied = [name for name in _varied(planned) if name != "seed"]
    first = planned.runs[0]
    kept = [name for name in sweep.base if name not in (*varied, "seed", "validation")]
    runs = [run for choice in choices for run in choice.best.runs]
    points = list(dict.fromkeys(_of(run, varied) for run in runs))
    base = {name: format_value(getattr(first.spec, name)) for name in kept}
    chosen = [dict(zip(varied, map(format_value, point), strict=True)) for point in points]
    return sweep_text(sweep, base, chosen, sorted({run.spec.seed for run in runs}))


def sweep_text(
    sweep: Sweep, base: Mapping[str, str], chosen: Sequence[Mapping[str, str]], seeds: Sequence[int]
) -> str:
    """Return the text of a sweep of chosen points on the whole training set.

    Args:
        sweep: The sweep that they were chosen from.
        base: Fields that all points share.
        chosen: Fields of each point.
        seeds: Seeds of each point.
    """
    document: dict[str, Any] = {
        "name": f"{sweep.name}{SUFFIX}",
        "description": f"What was chosen of {sweep.name} on its validation split",
        **({"plugins": list(sweep.plugins)} if sweep.plugins else {}),
        "base": _with_numbers({**base, "validation": "0"}),
        "grid": {"chosen": list(map(_with_numbers, chosen))},
        "seeds": list(seeds),
    }
    return as_yaml(document)


def _with_numbers(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return fields with numbers in place of their texts."""
    values = {name: fields()[name].parse(text) for name, text in texts.items()}
    return {
        name: value if type(value) in (int, float) else texts[name]
        for name, value in values.items()
    }
