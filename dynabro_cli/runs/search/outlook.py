"""Check a search before it starts: components, legal combinations, the goal, and how many runs it
is.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.grid.plan import component_problems, component_text
from dynabro_cli.experiment.grid.search import Search
from dynabro_cli.experiment.grid.search_space import Entry, Space
from dynabro_cli.experiment.grid.sweep_file import Values
from dynabro_cli.experiment.resolve import Run

MOST_CHECKED = 2000
"""Combinations that are resolved before a search starts; those beyond are checked when they are
proposed.
"""


@dataclass(frozen=True)
class Outlook:
    """Size of a search.

    Attributes:
        searches: Number of searches of the file, one per point of its grid.
        trials: Trials of all searches.
        runs: Runs of all searches, if no two trials are one run.
        combinations: Combinations of entries of one search; ``legal``: those that can run, in the
            first search.
        samples: A run of each search, to estimate its time.
        idle: Entries that no legal combination of any search has, in words.
    """

    searches: int
    trials: int
    runs: int
    combinations: int
    legal: int
    samples: tuple[Run, ...]
    idle: tuple[str, ...]


def outlook(search: Search) -> Outlook:
    """Check a search, and return its size.

    Raises:
        SpecError: With every problem, one line each: components and ends of ranges with their place
            in the file; then a search of which no combination can run, and a goal that its runs do
            not have.
    """
    space = search.space
    problems = _component_problems(search, space)
    if problems:
        raise SpecError(problems)
    samples: list[Run] = []
    legal, idle = 0, list[str]()
    for number, (name, fixed) in enumerate(search.points()):
        example, problem, count, unused = _legal(
            search, space, fixed, MOST_CHECKED if number == 0 or idle else 0
        )
        if example is None:
            problems.append(f"{name}: no combination can run, first because {problem}")
            continue
        problems += [line for line in _goal_problems(search, example) if line not in problems]
        samples.append(example)
        if number == 0:
            legal, idle = count, unused if space.size <= MOST_CHECKED else []
        idle = [entry for entry in idle if entry in unused]
    if problems:
        raise SpecError(problems)
    trials = search.trials or legal
    if search.sampler == "grid":
        trials = min(trials, legal)
    then = search.then
    repeated = (
        0
        if then is None
        else min(then.best + then.first, trials) * len(set(then.seeds) - set(search.seeds))
    )
    searches = len(samples)
    return Outlook(
        searches,
        searches * trials,
        searches * (trials * len(search.seeds) + repeated),
        space.size,
        legal,
        tuple(samples),
        tuple(idle),
    )


def _legal(
    search: Search, space: Space, fixed: Values, most: int
) -> tuple[Run | None, str, int, list[str]]:
    """Return a run of a search, or the first problem; and the number of legal combinations, and the
    entries in none of them.

    All combinations are resolved up to ``most``; with 0, resolving stops at the first run.
    """
    example, problem, legal = None, "", 0
    used: set[tuple[str, str]] = set()
    for number, (entries, run) in enumerate(search.combinations(fixed)):
        if example is not None and number >= most:
            legal += space.size - number  # not checked
            break
        if isinstance(run, SpecError):
            problem = problem or run.problems[0]
            continue
        example, legal = example or run, legal + 1
        used |= {(axis.label, entry.label) for axis, entry in zip(space.axes, entries, strict=True)}
    every = [(axis.label, entry.label) for axis in space.axes for entry in axis.entries]
    return (
        example,
        problem,
        legal,
        [f"{label}={text}" for label, text in every if (label, text) not in used],
    )


def _component_problems(search: Search, space: Space) -> list[str]:
    """Return the problems of single components, in fixed fields and at both ends and inside of
    every range.
    """
    lines = {f"{place}: {line}": None for line, place in component_problems(search.sweep).items()}
    for entry in (entry for axis in space.axes for entry in axis.entries):
        for name, text in entry.texts.items():
            place = search.sweep.places.get((name, text), f"{name}={text}")
            lines.update(dict.fromkeys(f"{place}: {line}" for line in _range_problems(entry, name)))
    return list(lines)


def _range_problems(entry: Entry, name: str) -> list[str]:
    """Return the problems of a component at the first illegal number of its ranges."""
    probes = dict.fromkeys(entry.probe(which)[name] for which in (0, 1, 2))
    for number, probe in enumerate(probes):
        try:
            component_text(name, probe)
        except SpecError as error:
            hint = ". Try: int in the range, such as {1..200 int}" if number == 2 else ""
            return [f"{line}{hint}" for line in error.problems]
    return []


def _goal_problems(search: Search, run: Run) -> list[str]:
    """Return why the runs of a search do not have the number that it optimises."""
    key, task = "maximize" if search.maximize else "minimize", run.spec.task
    if search.goal.endswith("_gap") and run.model is not None:
        return [
            f"{key}={search.goal}: task {task!r} has no known minimum. Try: {key}: final_accuracy"
        ]
    if not search.goal.endswith("_gap") and run.model is None:
        return [f"{key}={search.goal}: task {task!r} has no test set. Try: {key}: final_gap"]
    if search.goal.startswith("validation") and not run.spec.validation:
        return [f"{key}={search.goal}: no samples are held out. Try: validation: 0.1 in base"]
    return []
