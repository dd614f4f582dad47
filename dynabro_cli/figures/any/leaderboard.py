"""The figure ``leaderboard``."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from sqlalchemy import Engine

from dynabro_cli.errors import NotFoundError, SpecError, many
from dynabro_cli.figures._api import Drawn, record
from dynabro_cli.figures._columns import method_names
from dynabro_cli.figures._panels import SHARES, blank, draw_matrix, write_above
from dynabro_cli.figures._searches import Searches, file_of, numbers_of, read_searches
from dynabro_cli.figures._style import narrow, note_size
from dynabro_cli.store.read.pairs import LEVEL, paired_t

ADVERSARY = ("attack", "attack_entry", "switching", "clock", "seed")
"""Fields of the spec that an adversary chooses, and the seed: two runs that differ in others are of different rows."""
PROBLEM = ("task", "model", "data", "workers", "byzantine", "budget")
"""Columns of ``runs`` that must be equal in all rows: accuracies on different problems have no common ranking."""
NOT_FINITE = ("inf", "nan")
"""Attacks that any server recognises by looking at a message; without such a look one message ends a run."""
USUAL = ("gradient", "data")
"""Entries of a fixed suite: what ``attack_entry=auto`` comes to."""
STATIC, ACCURACY = "static", "final_accuracy"
KINDS = (STATIC, "switching")
SCORES = {
    "no_attack": "no attack",
    **{f"{kind}_{by}": f"{kind}: {by}" for kind in KINDS for by in ("suite", "search")},
    "not_finite": "inf, nan",
}
"""Accuracies of a row, with their heads; a picture and its table leave out those that no row has."""
SIZE, ROW = 6.0, 0.021


class Worst(NamedTuple):
    """The lowest mean of a row over some adversaries: its attack in words, and accuracies by seed."""

    mean: float
    attack: str
    seeds: pd.Series[Any]


@record("leaderboard", table="trials")
def draw(engine: Engine, where: str | None) -> Drawn:
    """Rank each (method, rule) by the accuracy that it keeps under the strongest adversary that searches have found.

    A row is a setting that was searched. Its columns show the accuracy without attack, under the worst of the fixed suite
    (all other stored attacks on this setting), and under the worst adversary of a search, over the seeds of its repetitions.
    Static and switching adversaries have separate columns. So do attacks with infinity or NaN: any server can refuse such a
    message. ``above`` is the p-value of a paired test against the row above, over the seeds. Only searches that minimise the
    final accuracy count.

    Raises:
        NotFoundError: No search has repeated its best trials.
        SpecError: The searches are of different problems, such as two tasks.
    """
    found = read_searches(engine, where)
    lowest = {name for name, about in found.about.items() if about.goal == ACCURACY and not about.maximize}
    rows = _rows(found._replace(trials=found.trials[found.trials["search"].map(file_of).isin(lowest)]))
    if not rows:
        raise NotFoundError(
            "no search with 'minimize: final_accuracy' has repeated its best trials yet. Try: the same dynabro search command, "
            "to its end"
        )
    numbers = pd.DataFrame(rows)
    notes = _notes(numbers)
    return Drawn(_picture(numbers, notes), numbers.drop(columns="by_seed"), _table(numbers), _best(numbers), notes)


def _rows(found: Searches) -> list[dict[str, Any]]:
    """Return the rows, the best first."""
    runs = found.runs.assign(setting=found.runs["spec"].map(_setting))
    ended = found.trials[found.trials["status"].isin(("finished", "pruned"))]
    chosen = _chosen(found)
    by_key = runs.drop_duplicates("run_key").set_index("run_key")
    known = ended["run_keys"].map(lambda keys: by_key["setting"].get(keys[0]))
    # trials that were pruned, or whose runs were removed from a database to give away, count for the setting of their search
    trials = known.fillna(known.groupby(ended["search"]).transform("first")).value_counts()
    repeated: dict[str, list[tuple[str, Worst]]] = {}
    problems: dict[tuple[str, ...], list[str]] = {}
    for trial in ended[known.notna() & (ended["status"] == "finished")].itertuples():
        first = by_key.loc[trial.run_keys[0]]
        own = found.repetitions(trial)
        if len(own):
            kind = STATIC if first["switching"] == STATIC else KINDS[1]
            repeated.setdefault(first["setting"], []).append((kind, _worst(own)))
            problems.setdefault(tuple(str(first[name]) for name in PROBLEM), []).append(trial.search)
    _check_one(problems)
    rows = []
    runs = runs[runs["setting"].isin(list(repeated))]
    runs = runs.assign(label=method_names(runs))
    for setting, candidates in repeated.items():
        own = runs[runs["setting"] == setting]
        elsewhere = own[~own["sweep"].isin(list(found.about))]
        with_suite = (elsewhere["attack"] != "none").any()  # without one, its attacks among the first trials are not a suite
        usual = ~own["cell"].isin(chosen) & (with_suite | own["run_key"].isin(elsewhere["run_key"]))
        fixed = _common_seeds(own[usual].drop_duplicates(["cell", "seed"]))
        rows.append(_row(own.iloc[0], fixed, candidates, int(trials[setting])))
    rows.sort(key=lambda row: -row["worst"])
    for above, row in zip([None, *rows], rows, strict=False):
        row["p_above"] = math.nan if above is None else _p(above["by_seed"], row["by_seed"])
    return rows


def _check_one(problems: Mapping[tuple[str, ...], Sequence[str]]) -> None:
    """Raise SpecError if the searches, by their problem, are of more than one.

    The message has the names of their files; if a file has searches of several problems, the names of the searches.
    """
    if len(problems) > 1:
        different = [name for name, values in zip(PROBLEM, zip(*problems, strict=True), strict=True) if len(set(values)) > 1]
        files = [set(map(file_of, searches)) for searches in problems.values()]
        apart = sum(map(len, files)) == len(set().union(*files))
        names = [dict.fromkeys(map(file_of, searches) if apart else searches) for searches in problems.values()]
        groups = [shlex.join(own) for own in names]
        raise SpecError(
            f"searches that differ in {' and '.join(different)} have no common ranking: {'; '.join(groups)}. "
            f"Try: dynabro leaderboard {groups[0]}"
        )


def _chosen(found: Searches) -> set[str]:
    """Return the cells of runs that only a search has chosen: a number of a range, or an entry that is not the usual one.

    A proposal without either, such as ``sf``, belongs to the fixed suite, too, also if the search made the run first.
    """
    with_numbers = found.trials["parameters"].map(lambda one: any(isinstance(own, int | float) for own in one.values()))
    numbers = {key for own in found.trials["run_keys"][with_numbers] for key in own}
    proposed = {key for own in found.trials["run_keys"] for key in own}
    runs = found.runs
    own = runs["run_key"].isin(numbers) | (runs["run_key"].isin(proposed) & ~runs["entry"].isin(USUAL))
    return set(runs[own]["cell"]) - set(runs[~runs["sweep"].isin(list(found.about))]["cell"])


def _row(first: Any, fixed: pd.DataFrame, candidates: Sequence[tuple[str, Worst]], trials: int) -> dict[str, Any]:
    chain = "" if first["pre_aggregators"] == "none" else f"{first['pre_aggregators']}+"
    row: dict[str, Any] = {"method": first["label"], "rule": f"{chain}{first['aggregator']}", "trials": trials}
    free = fixed[fixed["attack"] == "none"]
    row["no_attack"] = _lowest(free).mean
    name = fixed["attack"].map(lambda text: text.partition(":")[0])
    finite = fixed[~name.isin(("none", *NOT_FINITE))]
    row["not_finite"] = _lowest(fixed[name.isin(NOT_FINITE)]).mean
    worst: list[Worst] = []
    for kind in KINDS:
        suite = _lowest(finite[(finite["switching"] == STATIC) == (kind == STATIC)])
        own = [one for which, one in candidates if which == kind]
        best = min(own, key=lambda one: one.mean) if own else Worst(math.nan, "", pd.Series(dtype=float))
        row |= {f"{kind}_suite": suite.mean, f"{kind}_suite_attack": suite.attack}
        row |= {f"{kind}_search": best.mean, f"{kind}_search_attack": best.attack}
        worst += [best] if own else []
    lowest = min(worst, key=lambda one: one.mean)
    return row | {"worst": lowest.mean, "worst_attack": lowest.attack, "seeds": len(lowest.seeds), "by_seed": lowest.seeds}


def _common_seeds(fixed: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the seeds that all cells have, if there are any: a search repeats some cells with more seeds."""
    seeds = [set(own["seed"]) for _, own in fixed.groupby("cell")]
    common = set.intersection(*seeds) if seeds else set()
    return fixed[fixed["seed"].isin(common)] if common else fixed


def _worst(runs: pd.DataFrame) -> Worst:
    """Return the mean over the seeds of one adversary."""
    first = runs.iloc[0]
    entry = "" if first["attack_entry"] in USUAL else f" at the {first['attack_entry']}"
    values = numbers_of(runs, ACCURACY)
    return Worst(float(values.mean()), f"{first['attack']}{entry}, {first['switching']}", values)


def _lowest(runs: pd.DataFrame) -> Worst:
    """Return the adversary with the lowest mean."""
    every = [_worst(own) for _, own in runs.groupby("cell", sort=False)]
    return min(every, key=lambda one: one.mean) if every else Worst(math.nan, "", pd.Series(dtype=float))


def _setting(spec: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in spec.items() if name not in ADVERSARY}, sort_keys=True)


def _p(above: pd.Series[Any], below: pd.Series[Any]) -> float:
    differences = (above - below).dropna()
    return paired_t(list(differences)) if len(differences) > 1 else math.nan


def _notes(numbers: pd.DataFrame) -> list[str]:
    few, most = int(numbers["trials"].min()), int(numbers["trials"].max())
    trials = many(most, "trial") if few == most else f"{few} to {most} trials"
    seeds = many(int(numbers["seeds"].max()), "seed")
    notes = [f"search: mean over {seeds} of the worst of the best trials, after {trials} a row"]
    known = [numbers[[f"{kind}_suite", f"{kind}_search"]].notna().all(axis=1) for kind in KINDS]
    pairs = zip(KINDS, known, strict=True)
    lower = sum(int((numbers[f"{kind}_search"] < numbers[f"{kind}_suite"])[both].sum()) for kind, both in pairs)
    places = sum(int(both.sum()) for both in known)
    if places:
        notes.append(f"the search is below the fixed suite in {lower} of {places} places; their seeds may differ")
    notes.append(f"above: p-value of the paired test against the row above; rows with p > {LEVEL:g} are not separated")
    return notes


def _best(numbers: pd.DataFrame) -> set[tuple[int, int]]:
    """Return the places of the highest number of each column of the table."""
    places = set()
    for column, name in enumerate(_scores(numbers), 2):
        places.add((int(numbers[name].idxmax()), column))
    return places


def _scores(numbers: pd.DataFrame) -> dict[str, str]:
    """Return the accuracies that some row has, with their heads."""
    return {name: head for name, head in SCORES.items() if numbers[name].notna().any()}


def _table(numbers: pd.DataFrame) -> pd.DataFrame:
    def score(value: float) -> str:
        return "-" if math.isnan(value) else f"{value:.3f}"

    scores, lines = _scores(numbers), []
    for row in numbers.itertuples():
        line = {"method": row.method, "rule": row.rule}
        line |= {head: score(getattr(row, name)) for name, head in scores.items()}
        line |= {"worst": score(row.worst), "found by": row.worst_attack}
        line["above"] = "-" if math.isnan(row.p_above) else f"{row.p_above:.2g}"
        lines.append(line)
    return pd.DataFrame(lines)


def _picture(numbers: pd.DataFrame, notes: Sequence[str]) -> Figure:
    """Return the numbers as a coloured table, with the attacks in words at the right."""
    names = _scores(numbers)
    heads = [head.replace(" ", "\n") for head in names.values()]
    size = note_size(SIZE)
    figure, axes = blank(1, 1, height=1.2 + ROW * 1.5 * size * len(numbers))
    panel = axes[0, 0]
    values = numbers[list(names)].to_numpy(dtype=float)
    places, _ = draw_matrix(panel, values, [[""] * len(names)] * len(numbers), SHARES, bold=set(), size=size)
    panel.xaxis.tick_top()
    panel.set_xticks(places, heads)
    panel.set_yticks(range(len(numbers)), [f"{row.method}, {row.rule}" for row in numbers.itertuples()])
    panel.tick_params(length=0, labelsize=size)
    panel.tick_params(axis="x", labelsize=size * 0.7)
    for side in panel.spines.values():
        side.set_visible(False)
    if not narrow():
        for place, row in enumerate(numbers.itertuples()):
            panel.text(len(names) - 0.4, place, row.worst_attack, va="center", ha="left", fontsize=size * 0.85)
        panel.set_xlim(-0.5, len(names) * 2.5 - 0.5)
    write_above(figure, ["accuracy that is left under the strongest adversary found, by search", *notes])
    return figure
