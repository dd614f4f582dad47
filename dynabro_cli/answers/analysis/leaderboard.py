"""Numbers of the leaderboard: what each defence keeps under the strongest adversary known."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from dynabro_cli.answers.analysis.columns import method_names
from dynabro_cli.answers.analysis.diverged import DIVERGED
from dynabro_cli.answers.analysis.paired_tests import groups
from dynabro_cli.answers.analysis.results import adversaries_of
from dynabro_cli.answers.analysis.searches import Searches, file_of, numbers_of
from dynabro_cli.core.errors import NotFoundError, SpecError
from dynabro_cli.experiment.effect import USUAL_CLOCK, entry_words

NOT_IN_SETTING = ("attack", "attack_entry", "switching", "clock", "seed")
"""Fields of the spec that an adversary chooses, and the seed: two runs that differ in others are of
different rows.
"""
PROBLEM = ("task", "model", "data", "workers", "byzantine", "budget")
"""Columns of ``runs`` that must be equal in all rows: accuracies on different problems have no
common ranking.
"""
NOT_FINITE = ("inf", "nan")
"""Attacks that any server recognises by looking at a message; without such a look one message ends
a run.
"""
STATIC, ACCURACY, NONE = "static", "final_accuracy", "none"
ROW_FIELDS = ("method", "rule", "learning_rate")
READ = (
    *NOT_IN_SETTING,
    *PROBLEM,
    *ROW_FIELDS,
    "run_key",
    "sweep",
    "spec",
    "cell",
    "status",
    ACCURACY,
)
"""Columns of ``runs`` that are read."""
USUAL = ("gradient", "data")
"""The entries that ``attack_entry=auto`` comes to."""
BETWEEN, WITHIN = "between", "within"
RANKED = {BETWEEN: "between rounds", WITHIN: "within rounds"}
"""The columns, in words: identities change between rounds at most, or also within them."""
NO_OTHERS: Mapping[str, float] = MappingProxyType({})
LONG = 4
"""The budget of ``lost``, in budgets of the row."""


class Worst(NamedTuple):
    """The strongest of some adversaries, and its mean.

    Attributes:
        mean: Its mean accuracy.
        attack: The adversary in words.
        seeds: Its accuracies by seed.
        lowest: The lowest accuracy of any run of all these adversaries.
        candidates: The number of adversaries.
        apart: True if other seeds than these chose it, so that the choice does not lower the mean.
        diverged: Number of its runs that diverged.
    """

    mean: float
    attack: str
    seeds: dict[int, float]
    lowest: float
    candidates: int
    apart: bool
    diverged: int


NO_ADVERSARY = Worst(math.nan, "", {}, math.nan, 0, True, 0)


def leaderboard(searches: Searches) -> pd.DataFrame:
    """Return one row per setting that was searched, with the highest accuracy between rounds first.

    For each of ``RANKED`` it has the mean under the strongest adversary (see ``_lowest``), its
    attack, the lowest accuracy of any run, the letters of the row's groups (see ``groups``), and if
    a test separates the row from the best.

    Raises:
        NotFoundError: No search has repeated its best trials.
        SpecError: The searches are of different problems, such as two tasks.
    """
    lowest = [
        name
        for name, about in searches.about.items()
        if about.goal == ACCURACY and not about.maximize
    ]
    counted = searches.trials["search"].map(file_of).isin(lowest)
    rows = _rows(searches._replace(trials=searches.trials[counted]))
    if not rows:
        raise NotFoundError(
            "no search with 'minimize: final_accuracy' has repeated its best trials yet. Try: "
            "the same dynabro search command, to its end"
        )
    numbers = pd.DataFrame(rows)
    for column in RANKED:
        judged = groups(list(numbers.pop(f"{column}_seeds")))
        numbers[f"{column}_group"], numbers[f"{column}_tied"] = judged.letters, judged.tied
    return numbers


def _rows(searches: Searches) -> list[dict[str, Any]]:
    """Return the rows, with the highest accuracy between rounds first."""
    adversaries = adversaries_of(searches.runs)
    runs = searches.runs[list(READ)].assign(
        setting=searches.runs["spec"].map(_setting),
        # a clock without effect is the usual one
        clocks=[
            USUAL_CLOCK if adversary.any_clock else adversary.clock for adversary in adversaries
        ],
        any_clock=[adversary.any_clock for adversary in adversaries],
    )
    ended = searches.trials[searches.trials["status"].isin(("finished", "pruned"))]
    by_key = runs.drop_duplicates("run_key").set_index("run_key")
    settings = ended["run_keys"].map(lambda keys: by_key["setting"].get(keys[0]))
    # trials that were pruned, or whose runs were removed from a database to give away, count for
    # the setting of their search
    by_search = settings.groupby(ended["search"]).transform("first")
    trials = settings.fillna(by_search).value_counts()
    repeated: dict[str, list[pd.DataFrame]] = {}
    problems: dict[tuple[str, ...], list[str]] = {}
    finished = ended[settings.notna() & (ended["status"] == "finished")]
    for trial, cell in searches._replace(trials=finished, runs=runs).repetitions():
        if len(cell):
            first = cell.iloc[0]
            repeated.setdefault(first["setting"], []).append(cell)
            problem = tuple(str(first[name]) for name in PROBLEM)
            problems.setdefault(problem, []).append(trial.search)
    _check_one(problems)
    names = method_names(runs[runs["setting"].isin(list(repeated))])
    rows = []
    for setting, candidates in repeated.items():
        tried = runs[runs["setting"] == setting]
        free = runs[(runs["attack"] == NONE) & (runs["setting"] == _with_budget(setting, LONG))]
        seeds = set(candidates[0]["seed"])
        # the repeated trials of searches are candidates already
        others = tried[~tried["sweep"].isin(list(searches.about))].groupby("cell")
        for _, cell in others:
            # a run may be stored twice, under two texts of the same adversary
            cell = cell.drop_duplicates("seed")
            if seeds <= set(cell["seed"]):
                candidates.append(cell[cell["seed"].isin(seeds)])
        row = _row(names[tried.index[0]], tried, free, candidates)
        rows.append(row | {"trials": int(trials[setting])})
    # NaN as a key would leave the rows in no order
    return sorted(
        rows, key=lambda row: -row[BETWEEN] if not math.isnan(row[BETWEEN]) else -row[WITHIN]
    )


def _check_one(problems: Mapping[tuple[str, ...], Sequence[str]]) -> None:
    """Raise SpecError if the searches, by their problem, are of more than one.

    The message has the names of their files; if a file has searches of several problems, the names
    of the searches.
    """
    if len(problems) > 1:
        different = [
            name
            for name, values in zip(PROBLEM, zip(*problems, strict=True), strict=True)
            if len(set(values)) > 1
        ]
        files = [set(map(file_of, searches)) for searches in problems.values()]
        apart = sum(map(len, files)) == len(set().union(*files))
        names = [
            dict.fromkeys(map(file_of, searches) if apart else searches)
            for searches in problems.values()
        ]
        groups = [shlex.join(group) for group in names]
        raise SpecError(
            f"searches that differ in {' and '.join(different)} have no common ranking: "
            f"{'; '.join(groups)}. "
            f"Try: dynabro leaderboard {groups[0]}"
        )


def _row(
    method: str, tried: pd.DataFrame, free: pd.DataFrame, candidates: Sequence[pd.DataFrame]
) -> dict[str, Any]:
    """Return the numbers of a row: ``tried`` are its runs, ``free`` runs without attack at a longer
    budget.
    """
    first, name = tried.iloc[0], tried["attack"].map(lambda text: text.partition(":")[0])
    seeds = {seed for runs in candidates for seed in runs["seed"]}
    rest = tried[~tried["seed"].isin(seeds)].groupby("cell")[ACCURACY]
    # a run that diverged on a task of unknown classes is the worst
    others = rest.agg(lambda values: values.mean(skipna=False)).fillna(-math.inf).to_dict()
    cells = [
        runs
        for runs in candidates
        if runs["attack"].iloc[0].partition(":")[0] not in (NONE, *NOT_FINITE)
    ]
    between = [runs for runs in cells if runs["clocks"].iloc[0] == USUAL_CLOCK]
    # an adversary that may change identities within rounds need not; without one that does, nothing
    # is known of such changes
    within = cells if first["any_clock"] or len(between) < len(cells) else []
    unattacked, finite = (
        _lowest(_cells(free)).mean,
        [_lowest(chosen, others) for chosen in (between, within)],
    )
    row: dict[str, Any] = {
        "method": method,
        "rule": first["rule"],
        "learning_rate": first["learning_rate"],
        "seeds": max(len(worst.seeds) for worst in finite),
        "no_attack": _lowest(_cells(tried[name == NONE])).mean,
        "no_attack_long": unattacked,
        "lost": unattacked - finite[0].mean,
        "not_finite": _lowest(_cells(tried[name.isin(NOT_FINITE)])).mean,
    }
    for part, chosen in ((STATIC, True), ("switching", False)):
        row[f"{part}_search"] = _lowest(
            [runs for runs in between if (runs["switching"].iloc[0] == STATIC) == chosen], others
        ).mean
    for column, worst in zip(RANKED, finite, strict=True):
        row |= {
            column: worst.mean,
            f"{column}_lowest": worst.lowest,
            f"{column}_attack": worst.attack,
            f"{column}_seeds": worst.seeds,
            f"{column}_diverged": worst.diverged,
            f"{column}_candidates": worst.candidates,
            f"{column}_apart": worst.apart,
        }
    worst = finite[0] if math.isnan(finite[1].mean) else finite[1]
    return row | {"worst": worst.mean, "worst_attack": worst.attack}


def _cells(runs: pd.DataFrame) -> list[pd.DataFrame]:
    return [cell for _, cell in runs.groupby("cell", sort=False)]


def _lowest(cells: Sequence[pd.DataFrame], others: Mapping[str, float] = NO_OTHERS) -> Worst:
    """Return the adversary with the lowest mean over other seeds, with its mean over the seeds of
    ``cells``.

    If the same seeds chose and were tested, more candidates would mean a lower number. An adversary
    without runs at other seeds counts only if its mean here is lower than the chosen one's.

    Args:
        cells: The runs of each adversary.
        others: The mean over other seeds, by cell.
    """
    if not cells:
        return NO_ADVERSARY
    values = [numbers_of(runs, ACCURACY) for runs in cells]
    means = [float(numbers.mean(skipna=False)) for numbers in values]
    known = [place for place, runs in enumerate(cells) if runs["cell"].iloc[0] in others]
    place = min(
        known or range(len(cells)),
        key=lambda place: others.get(cells[place]["cell"].iloc[0], means[place]),
    )
    apart = bool(known)
    for rival in set(range(len(cells))) - set(known):
        if means[rival] < means[place]:
            place, apart = rival, False
    first = cells[place].iloc[0]
    words = entry_words(first["attack_entry"]).removeprefix("attack enters")
    entry = "" if first["attack_entry"] in USUAL else words
    clock = "" if first["clocks"] == USUAL_CLOCK else f", clock={first['clock']}"
    attack = f"{first['attack']}{entry}, {first['switching']}{clock}"
    return Worst(
        means[place],
        attack,
        values[place].to_dict(),
        float(min(accuracies.min() for accuracies in values)),
        len(cells),
        apart,
        int((cells[place]["status"] == DIVERGED).sum()),
    )


def _setting(spec: dict[str, Any]) -> str:
    return json.dumps(
        {name: value for name, value in spec.items() if name not in NOT_IN_SETTING}, sort_keys=True
    )


def _with_budget(setting: str, factor: int) -> str:
    spec = json.loads(setting)
    return _setting(spec | {"budget": factor * spec["budget"]})


def headline(numbers: pd.DataFrame) -> list[str]:
    """Return a sentence for each column: the rows that are not separated from its best, and the
    best of the other methods; lowest runs in brackets.
    """
    lines = []
    for column, words in RANKED.items():
        measured = numbers.dropna(subset=column)
        best = measured[measured[f"{column}_tied"]].sort_values(
            column, ascending=False, kind="stable"
        )
        if best.empty:
            continue
        rules = best.groupby("method", sort=False)["rule"].agg(", ".join)
        named = "; ".join(f"{method} behind {rules[method]}" for method in rules.index)
        lowest = best[f"{column}_lowest"]
        ends = f"{best[column].iloc[0]:.2f}" + (
            f" to {best[column].iloc[-1]:.2f}" if len(best) > 1 else ""
        )
        ends += (
            f" (lowest runs {lowest.min():.2f} to {lowest.max():.2f})"
            if len(best) > 1
            else f" (lowest run {lowest.min():.2f})"
        )
        line = (
            f"{words}: {len(best)} of {len(measured)} defences are not separated from the "
            f"best, with {ends}: {named}"
        )
        others = (
            measured[~measured["method"].isin(list(rules.index))]
            .groupby("method", sort=False)[column]
            .max()
        )
        if len(others):
            worse = (f"{method} (at most {value:.2f})" for method, value in others.items())
            line += f". Separated: {', '.join(worse)}"
        lines.append(line)
    return lines
