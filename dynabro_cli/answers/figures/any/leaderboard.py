"""The figure ``leaderboard``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from sqlalchemy import Engine

from dynabro_cli.answers.analysis.columns import TASKS
from dynabro_cli.answers.analysis.diverged import share
from dynabro_cli.answers.analysis.leaderboard import (
    BETWEEN,
    LONG,
    RANKED,
    WITHIN,
    headline,
    leaderboard,
)
from dynabro_cli.answers.analysis.paired_tests import LEVEL
from dynabro_cli.answers.analysis.searches import read_searches
from dynabro_cli.answers.figures._api import Drawn, record
from dynabro_cli.answers.figures._panels import SHARES, blank, draw_matrix, write_above
from dynabro_cli.answers.figures._style import note_size
from dynabro_cli.core.errors import many

MOST_LETTERS = 3
"""Most letters of a group's text; more are written as a range."""
SIZE, ROW = 6.0, 0.021


@record("leaderboard", table="trials")
def draw(engine: Engine, where: str | None) -> Drawn:
    """Show the accuracy that each (method, rule) keeps under the strongest adversary known, and
    which rows a test separates.

    A row is a setting that was searched. Its adversaries are the repeated trials of its searches,
    and all other stored attacks that have the seeds of the repetitions. The one with the lowest
    mean over other seeds counts, with its mean over these. Adversaries that change identities
    between rounds at most have a column, and so have those that change them within rounds, for whom
    the others count, too. ``lowest`` is the lowest accuracy of any of these runs, and ``lost`` the
    accuracy without attack at four times the budget, minus the first column. Attacks with infinity
    or NaN do not count: any server can refuse such a message. Rows of a column without a common
    letter are separated (see ``groups``). Only searches that minimise the final accuracy count.

    Raises:
        NotFoundError: No search has repeated its best trials.
        SpecError: The searches are of different problems, such as two tasks.
    """
    searches = read_searches(engine, where)
    numbers = leaderboard(searches)
    notes = _notes(numbers)
    runs, keys = searches.runs, searches.trials["run_keys"].explode()
    tasks = runs.loc[runs["run_key"].isin(keys), "task"].map(lambda task: TASKS.get(task, task))
    figure = _picture(numbers, [f"{', '.join(tasks.unique())}: {notes[0]}", notes[1]])
    return Drawn(figure, numbers, _table(numbers), set(), [*headline(numbers), *notes])


def _notes(numbers: pd.DataFrame) -> list[str]:
    few, most = int(numbers["trials"].min()), int(numbers["trials"].max())
    trials = many(most, "trial") if few == most else f"{few} to {most} trials"
    seeds = many(int(numbers["seeds"].max()), "seed")
    notes = [
        f"mean over {seeds} under the strongest adversary after {trials} a row; lowest: of any run",
        f"rows without a common letter are separated (paired t-tests, Holm, {LEVEL:.0%})",
    ]
    same = [column for column in RANKED if not numbers[f"{column}_apart"].all()]
    notes += [
        f"{column}: {many(int((~numbers[f'{column}_apart']).sum()), 'row')} with an attack that "
        "only the tested seeds have"
        for column in same
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
        accuracy = score(getattr(row, column))
        lost = share(getattr(row, f"{column}_diverged"), row.seeds)
        cells |= {
            column: f"{accuracy} {_shortened(getattr(row, f'{column}_group'))}".strip()
            + (f" ({lost})" if lost else ""),
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
    places, _ = draw_matrix(panel, values, words, SHARES, size=size)
    panel.xaxis.tick_top()
    panel.set_xticks(places, [name.strip() for name in shown])
    panel.set_yticks(range(len(numbers)), table["defence"])
    panel.tick_params(length=0, labelsize=size)
    for side in panel.spines.values():
        side.set_visible(False)
    write_above(figure, notes)
    return figure
