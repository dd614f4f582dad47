"""Data of figures of searches: trials, what they optimise, and their repetitions with other
seeds.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
from sqlalchemy import Engine

from dynabro_cli.answers.analysis.results import adversaries_of, cells_of, read_runs
from dynabro_cli.core.errors import NotFoundError, many
from dynabro_cli.experiment.grid.goals import GOALS
from dynabro_cli.runs.store.open.translation import translated_errors
from dynabro_cli.runs.store.read.queries import query
from dynabro_cli.runs.store.read.searches import is_sweep
from dynabro_cli.runs.store.write.trials import stored_search, unsound


@dataclass(frozen=True)
class About:
    """Description of the searches of one file, as their last command stored it.

    Attributes:
        goal: What is optimised, a key of ``GOALS``.
        maximize: True if more is better for the search.
        seeds: Seeds of the repetitions; empty without ``then``.
    """

    goal: str
    maximize: bool
    seeds: tuple[int, ...]

    @property
    def title(self) -> str:
        return GOALS[self.goal].title


class Searches(NamedTuple):
    """Stored searches.

    Attributes:
        trials: Columns of the table, by search and number; ``parameters`` and ``run_keys`` read; an
            infinite value is infinite.
        about: Descriptions by the name of the file.
        runs: All runs with a result, as of ``Results.runs``, with ``cell``, which is equal for runs
            that differ in the seed only, and ``entry``, where the attack acts; both are equal for
            runs that met the same adversary.
    """

    trials: pd.DataFrame
    about: Mapping[str, About]
    runs: pd.DataFrame

    def of(self, search: str) -> About:
        """Return the description of a search."""
        return self.about[file_of(search)]

    def repetitions(self) -> Iterator[tuple[Any, pd.DataFrame]]:
        """Yield each trial, and the runs of its choices with the seeds of ``then``; empty unless
        all of them have a result.
        """
        cells = self.runs.drop_duplicates("run_key").set_index("run_key")["cell"]
        places, seeds = self.runs.groupby("cell").indices, self.runs["seed"].to_numpy()
        for trial in self.trials.itertuples():
            about = self.of(trial.search)
            asked = dict.fromkeys(about.seeds)
            for place in places.get(cells.get(trial.run_keys[0]), ()):
                if seeds[place] in asked and asked[seeds[place]] is None:
                    asked[seeds[place]] = place
            whole = None not in asked.values()
            yield trial, self.runs.iloc[sorted(asked.values()) if whole else []]  # type: ignore[type-var]


def numbers_of(runs: pd.DataFrame, goal: str) -> pd.Series[Any]:
    """Return the optimised number of each run, by its seed."""
    final = GOALS[goal].final
    values = runs[final].astype(float) if final else pd.Series(math.nan, index=runs.index)
    return values.set_axis(runs["seed"])


def read_searches(engine: Engine, where: str | None) -> Searches:
    """Return the stored searches whose trials satisfy an SQL condition.

    Raises:
        NotFoundError: There is no such trial.
        SpecError: The condition is not valid.
    """
    trials = query(
        engine,
        f"SELECT * FROM trials {f'WHERE ({where})' if where else ''} ORDER BY search, number",
    ).frame()
    if trials.empty:
        why = (
            f"where={where}: it holds for no trial"
            if where
            else "no trial of a search is stored here"
        )
        raise NotFoundError(f"{why}. Try: dynabro search NAME")
    with translated_errors(engine.url), engine.connect() as connection:
        wrong = unsound(connection)
    places = list(zip(trials["search"], trials["number"], strict=True))
    left_out = [place for place in places if place in wrong]
    names = list(dict.fromkeys(map(file_of, trials["search"])))
    if left_out:
        search, number = left_out[0]
        warnings.warn(
            f"{many(len(left_out), 'trial')} left out, first trial {number} of {search}: "
            f"{wrong[left_out[0]]}. Try: dynabro db check, which lists all problems",
            stacklevel=2,
        )
        trials = trials[[place not in wrong for place in places]].reset_index(drop=True)
    if trials.empty:
        raise NotFoundError(
            f"{', '.join(map(repr, names))}: no trial of the search can be read. Try: dynabro "
            "db check"
        )
    about = {name: _about(engine, name) for name in dict.fromkeys(map(file_of, trials["search"]))}
    # the table has NULL for an infinite value; a trial that has finished has a value
    done = (trials["status"] == "finished") & trials["value"].isna()
    trials = trials.assign(
        parameters=trials["parameters"].map(json.loads),
        run_keys=trials["run_keys"].map(json.loads),
        value=trials["value"].astype(float).mask(done, math.inf),
    )
    runs = read_runs(engine, None)
    entries = [adversary.entry for adversary in adversaries_of(runs)]
    return Searches(trials, about, runs.assign(cell=cells_of(runs), entry=entries))


def file_of(search: str) -> str:
    """Return the name of the file of a search, which is in the column ``sweep`` of its runs."""
    return search.partition(": ")[0]


def _about(engine: Engine, name: str) -> About:
    with translated_errors(engine.url), engine.connect() as connection:
        search, with_sweep = stored_search(connection, name), is_sweep(connection, name)
    if with_sweep:
        warnings.warn(
            f"name={name}: a search and a sweep are stored under this name. The search is "
            "shown; the sweep's runs count as its "
            f"own. Try: other names, or dynabro runs --where \"sweep = '{name}'\" for all of them",
            stacklevel=2,
        )
    return About(search.goal, search.maximize, search.then.seeds if search.then else ())
