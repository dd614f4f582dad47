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
from dynabro_cli.experiment.effect import USUAL_CLOCK
from dynabro_cli.figures._api import Drawn, record
from dynabro_cli.figures._columns import method_names
from dynabro_cli.figures._data import adversaries_of
from dynabro_cli.figures._panels import SHARES, blank, draw_matrix, write_above
from dynabro_cli.figures._searches import Searches, file_of, numbers_of, read_searches
from dynabro_cli.figures._style import note_size
from dynabro_cli.store.read.pairs import LEVEL, groups

ADVERSARY = ("attack", "attack_entry", "switching", "clock", "seed")
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
DEFENCE = ("method", "pre_aggregators", "aggregator", "learning_rate")
READ = (*ADVERSARY, *PROBLEM, *DEFENCE, "run_key", "sweep", "spec", "cell", "status", ACCURACY)
"""Columns of ``runs`` that are read."""
USUAL = ("gradient", "data")
"""The entries that ``attack_entry=auto`` comes to."""
BETWEEN, WITHIN = "between", "within"
COLUMNS = {BETWEEN: "between rounds", WITHIN: "within rounds"}
"""The columns, in words: identities change between rounds at most, or also within them."""
LONG = 4
"""The budget of ``lost``, in budgets of the row."""
MOST_LETTERS = 3
"""Most letters of a group's text; more are written as a range."""
SIZE, ROW = 6.0, 0.021


class Worst(NamedTuple):
    """Some adversaries: the lowest mean, its attack in words, its accuracies by seed, and the
    lowest accuracy of any run.
    """

    mean: float
    attack: str
    seeds: dict[int, float]
    lowest: float


NOBODY = Worst(math.nan, "", {}, math.nan)


@record("leaderboard", table="trials")
def draw(engine: Engine, where: str | None) -> Drawn:
    """Show the accuracy that each (method, rule) keeps under the strongest adversary known, and
    which rows a test separates.

    A row is a setting that was searched. Its adversaries are the repeated trials of its searches,
    and all other stored attacks that have the seeds of the repetitions; the lowest mean over these
    seeds counts. Adversaries that change identities between rounds at most have a column, and so
    have those that change them within rounds, for whom the others count, too. ``lowest`` is the
    lowest accuracy of any of these runs, and ``lost`` the accuracy without attack at four times the
    budget, minus the first column. Attacks with infinity or NaN do not count: any server can refuse
    such a message. Rows of a column without a common letter are separated (see ``groups``). Only
    searches that minimise the final accuracy count.

    Raises:
        NotFoundError: No search has repeated its best trials.
        SpecError: The searches are of different problems, such as two tasks.
    """
    found = read_searches(engine, where)
    lowest = {
        name for name, about in found.about.items() if about.goal == ACCURACY and not about.maximize
    }
    rows = _rows(
        found._replace(trials=found.trials[found.trials["search"].map(file_of).isin(lowest)])
    )
    if not rows:
        raise NotFoundError(
            "no search with 'minimize: final_accuracy' has repeated its best trials yet. Try: "
            "the same dynabro search command, "
            "to its end"
        )
    numbers = pd.DataFrame(rows)
    for column in COLUMNS:
        judged = groups(list(numbers.pop(f"{column}_seeds")))
        numbers[f"{column}_group"], numbers[f"{column}_tied"] = judged.letters, judged.tied
    notes = _notes(numbers)
    return Drawn(
        _picture(numbers, notes), numbers, _table(numbers), set(), [*_headline(numbers), *notes]
    )


def _rows(found: Searches) -> list[dict[str, Any]]:
    """Return the rows, with the highest accuracy between rounds first."""
    adversaries = adversaries_of(found.runs)
    runs = found.runs[list(READ)].assign(
        setting=found.runs["spec"].map(_setting),
        clocks=[
            USUAL_CLOCK if adversary.any_clock else adversary.clock for adversary in adversaries
        ],
        any_clock=[adversary.any_clock for adversary in adversaries],
    )
    ended = found.trials[found.trials["status"].isin(("finished", "pruned"))]
    by_key = runs.drop_duplicates("run_key").set_index("run_key")
    known = ended["run_keys"].map(lambda keys: by_key["setting"].get(keys[0]))
    # trials that were pruned, or whose runs were removed from a database to give away, count for
    # the setting of their search
    trials = known.fillna(known.groupby(ended["search"]).transform("first")).value_counts()
    repeated: dict[str, list[pd.DataFrame]] = {}
    problems: dict[tuple[str, ...], list[str]] = {}
    finished = ended[known.notna() & (ended["status"] == "finished")]
    for trial, own in found._replace(trials=finished, runs=runs).repetitions():
        if len(own):
            first = own.iloc[0]
            repeated.setdefault(first["setting"], []).append(own)
            problems.setdefault(tuple(str(first[name]) for name in PROBLEM), []).append(
                trial.search
            )
    _check_one(problems)
    names = method_names(runs[runs["setting"].isin(list(repeated))])
    rows = []
    for setting, candidates in repeated.items():
        own = runs[runs["setting"] == setting]
        free = runs[(runs["attack"] == NONE) & (runs["setting"] == _with_budget(setting, LONG))]
        seeds = set(candidates[0]["seed"])
        others = [
            cell.drop_duplicates("seed")
            for _, cell in own[~own["sweep"].isin(list(found.about))].groupby("cell")
        ]
        candidates += [
            cell[cell["seed"].isin(seeds)] for cell in others if seeds <= set(cell["seed"])
        ]
        rows.append(
            _row(names[own.index[0]], own, free, candidates) | {"trials": int(trials[setting])}
        )
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
        groups = [shlex.join(own) for own in names]
        raise SpecError(
            f"searches that differ in {' and '.join(different)} have no common ranking: "
            f"{'; '.join(groups)}. "
            f"Try: dynabro leaderboard {groups[0]}"
        )


def _row(
    method: str, own: pd.DataFrame, free: pd.DataFrame, candidates: Sequence[pd.DataFrame]
) -> dict[str, Any]:
    """Return the numbers of a row: ``own`` are its runs, ``free`` runs without attack at a longer
    budget.
    """
    first, name = own.iloc[0], own["attack"].map(lambda text: text.partition(":")[0])
    cells = [
        runs
        for runs in candidates
        if runs["attack"].iloc[0].partition(":")[0] not in (NONE, *NOT_FINITE)
    ]
    between = [runs for runs in cells if runs["clocks"].iloc[0] == USUAL_CLOCK]
    # an adversary that may change identities within rounds need not; without one that does, nothing
    # is known of such changes
    within = cells if first["any_clock"] or len(between) < len(cells) else []
    chain = "" if first["pre_aggregators"] == "none" else f"{first['pre_aggregators']}+"
    unattacked, finite = (
        _lowest(_cells(free)).mean,
        [_lowest(chosen) for chosen in (between, within)],
    )
    row: dict[str, Any] = {
        "method": method,
        "rule": f"{chain}{first['aggregator']}",
        "learning_rate": first["learning_rate"],
        "seeds": max(len(worst.seeds) for worst in finite),
        "no_attack": _lowest(_cells(own[name == NONE])).mean,
        "no_attack_long": unattacked,
        "lost": unattacked - finite[0].mean,
        "not_finite": _lowest(_cells(own[name.isin(NOT_FINITE)])).mean,
    }
    for part, chosen in ((STATIC, True), ("switching", False)):
        row[f"{part}_search"] = _lowest(
            [runs for runs in between if (runs["switching"].iloc[0] == STATIC) == chosen]
        ).mean
    for column, worst in zip(COLUMNS, finite, strict=True):
        row |= {
            column: worst.mean,
            f"{column}_lowest": worst.lowest,
            f"{column}_attack": worst.attack,
            f"{column}_seeds": worst.seeds,
        }
    worst = finite[0] if math.isnan(finite[1].mean) else finite[1]
    return row | {"worst": worst.mean, "worst_attack": worst.attack}


def _cells(runs: pd.DataFrame) -> list[pd.DataFrame]:
    return [own for _, own in runs.groupby("cell", sort=False)]


def _lowest(cells: Sequence[pd.DataFrame]) -> Worst:
    """Return the adversary with the lowest mean over its seeds."""
    if not cells:
        return NOBODY
    values = [numbers_of(runs, ACCURACY) for runs in cells]
    place = min(range(len(cells)), key=lambda place: float(values[place].mean()))
    first = cells[place].iloc[0]
    entry = "" if first["attack_entry"] in USUAL else f" at the {first['attack_entry']}"
    clock = "" if first["clocks"] == USUAL_CLOCK else f", clock={first['clock']}"
    attack = f"{first['attack']}{entry}, {first['switching']}{clock}"
    return Worst(
        float(values[place].mean()),
        attack,
        values[place].to_dict(),
        float(min(own.min() for own in values)),
    )


def _setting(spec: dict[str, Any]) -> str:
    return json.dumps(
        {name: value for name, value in spec.items() if name not in ADVERSARY}, sort_keys=True
    )


def _with_budget(setting: str, factor: int) -> str:
    spec = json.loads(setting)
    return _setting(spec | {"budget": factor * spec["budget"]})


def _headline(numbers: pd.DataFrame) -> list[str]:
    """Return a sentence for each column: the rows that are not separated from its best, and the
    best of the other methods.
    """
    lines = []
    for column, words in COLUMNS.items():
        known = numbers.dropna(subset=column)
        best = known[known[f"{column}_tied"]].sort_values(column, ascending=False, kind="stable")
        if best.empty:
            continue
        rules = best.groupby("method", sort=False)["rule"].agg(", ".join)
        named = "; ".join(f"{method} behind {rules[method]}" for method in rules.index)
        ends = f"{best[column].iloc[0]:.2f}" + (
            f" to {best[column].iloc[-1]:.2f}" if len(best) > 1 else ""
        )
        line = (
            f"{words}: {len(best)} of {len(known)} defences are not separated from the "
            f"best, with {ends}: {named}"
        )
        others = (
            known[~known["method"].isin(list(rules.index))]
            .groupby("method", sort=False)[column]
            .max()
        )
        if len(others):
            line += (
                ". Separated: "
                f"{', '.join(f'{method} (at most {value:.2f})' for method, value in others.items())}"  # noqa: E501
            )
        lines.append(line)
    return lines


def _notes(numbers: pd.DataFrame) -> list[str]:
    few, most = int(numbers["trials"].min()), int(numbers["trials"].max())
    trials = many(most, "trial") if few == most else f"{few} to {most} trials"
    seeds = many(int(numbers["seeds"].max()), "seed")
    notes = [
        f"mean over {seeds} under the strongest adversary after {trials} a row; lowest: of any run",
        f"rows without a common letter are separated (paired t-tests, Holm, {LEVEL:.0%})",
    ]
    lost = numbers["lost"].notna().any()
    return (
        [*notes, f"lost: accuracy without attack at {LONG} times the budget, minus 'between'"]
        if lost
        else notes
    )


def _table(numbers: pd.DataFrame) -> pd.DataFrame:
    columns = {f"{row.method}, {row.rule}": _cells_of_row(row) for row in numbers.itertuples()}
    table = pd.DataFrame(columns).T.rename_axis("defence").reset_index()
    return table[[name for name in table if not (table[name] == "-").all()]]


def _cells_of_row(row: Any) -> dict[str, str]:
    """Return the texts of a row of the table."""

    def score(value: float) -> str:
        return "-" if math.isnan(value) else f"{value:.3f}"

    cells = {"lost": score(row.lost)}
    for column, head in ((BETWEEN, "lowest"), (WITHIN, "lowest ")):
        own = score(getattr(row, column))
        cells |= {
            column: f"{own} {_shortened(getattr(row, f'{column}_group'))}".strip(),
            head: score(getattr(row, f"{column}_lowest")),
        }
    return cells


def _shortened(letters: str) -> str:
    """Return letters as they are, or a long run of them by its ends."""
    whole = len(letters) == ord(letters[-1]) - ord(letters[0]) + 1 if letters else False
    return f"{letters[0]}-{letters[-1]}" if whole and len(letters) > MOST_LETTERS else letters


def _picture(numbers: pd.DataFrame, notes: Sequence[str]) -> Figure:
    """Return the numbers as a coloured table, with the letters of the groups."""
    table = _table(numbers)
    names = {
        BETWEEN: BETWEEN,
        "lowest": f"{BETWEEN}_lowest",
        WITHIN: WITHIN,
        "lowest ": f"{WITHIN}_lowest",
    }
    shown = [name for name in names if name in table]
    size = note_size(SIZE)
    figure, axes = blank(1, 1, height=1.2 + ROW * 1.5 * size * len(numbers))
    panel = axes[0, 0]
    values = numbers[[names[name] for name in shown]].to_numpy(dtype=float)
    words = table[shown].to_numpy().tolist()
    places, _ = draw_matrix(
        panel, values, [[""] * len(shown)] * len(numbers), SHARES, words=words, size=size
    )
    panel.xaxis.tick_top()
    panel.set_xticks(places, [name.strip() for name in shown])
    panel.set_yticks(range(len(numbers)), table["defence"])
    panel.tick_params(length=0, labelsize=size)
    for side in panel.spines.values():
        side.set_visible(False)
    write_above(figure, notes[:2])
    return figure
