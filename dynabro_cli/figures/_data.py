"""What figures are drawn from: runs with a result, and their evaluations, histograms and rounds."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Engine

from dynabro_cli.errors import DatabaseError
from dynabro_cli.store.queries import query, tell_left_out
from dynabro_cli.store.soundness import NUMBERS as WORKERS
from dynabro_cli.store.tables import metadata
from dynabro_cli.theory.rate import with_specs

RESULTS = "status IN ('finished', 'diverged')"
Identities = Callable[[Mapping[str, Any], int], "np.ndarray[Any, Any]"]
Windows = Callable[[Mapping[str, Any]], tuple[int, bool, bool]]
NUMBERS = ("test_accuracy", "test_loss", "train_loss", "gap")


@dataclass(frozen=True)
class Results:
    """The runs of a figure.

    Attributes:
        runs: A row a run that finished or diverged: the columns of the table ``runs``, with ``spec`` read as a mapping; of the
            runs that a database has, those of ``recovery``, too.
        planned: A row a run that the figure's sweep plans: ``run_key`` and the columns of the spec, in the plan's order.
            Where the figure has no sweep, the same as ``runs``.
        label: What is different from the sweep as it comes with the program.
        engine: The database.
        identities: ``identities(run, ticks)`` draws again who was Byzantine in a run, of which it takes the columns, at its
            first ticks: bool, [ticks, m].
        window: ``window(run)`` measures how many rounds one gradient influences in a run, of which it takes the columns;
            whether the measurement saw the end of it; and whether the method filters workers by their history.
    """

    runs: pd.DataFrame
    planned: pd.DataFrame
    label: str
    engine: Engine
    identities: Identities
    window: Windows

    @functools.cached_property
    def evaluations(self) -> pd.DataFrame:
        """The evaluations of the runs, in order; columns of the table."""
        found = self._rows("evaluations", "run_id, round")
        return found.astype(dict.fromkeys(NUMBERS, float))

    @functools.cached_property
    def histograms(self) -> pd.DataFrame:
        """``run_id``, ``byzantine``, ``rounds``: how many rounds of a run had so many Byzantine workers."""
        return self._rows("byzantine_histogram", "run_id, byzantine")

    def changes(self, run_id: int) -> pd.DataFrame:
        """The changes of a run's Byzantine set, where they are stored: ``tick``, and ``byzantine``, the workers from 1 on."""
        found = read(self.engine, f"SELECT tick, byzantine FROM identities WHERE run_id = {int(run_id)} ORDER BY tick")
        if not found["byzantine"].map(lambda text: WORKERS.fullmatch(text) is not None).all():
            raise DatabaseError(f"run {run_id}: a row of identities has no list of workers. Try: dynabro db check")
        return found.assign(byzantine=found["byzantine"].map(json.loads))

    def rounds(self, run_id: int) -> pd.DataFrame:
        """The rounds of a run, in order; columns of the table."""
        return read(self.engine, f"SELECT * FROM rounds WHERE run_id = {int(run_id)} ORDER BY round")

    def _rows(self, table: str, order: str) -> pd.DataFrame:
        which = f"run_id IN ({', '.join(str(run_id) for run_id in self.runs['id']) or 'NULL'})"
        tell_left_out(self.engine, (table,) if table in metadata.tables else ("rounds", "byzantine_counts"), which)
        return read(self.engine, f"SELECT * FROM {table} WHERE {which} ORDER BY {order}")


def read(engine: Engine, sql: str) -> pd.DataFrame:
    """The answer to a query, as a frame."""
    table = query(engine, sql)
    return pd.DataFrame(list(table.rows), columns=table.columns)


def read_runs(engine: Engine, where: str | None) -> pd.DataFrame:
    """The runs with a result that fulfil an SQL condition, as ``Results.runs`` has them.

    Raises:
        SpecError: The condition is wrong.
    """
    condition = f"{RESULTS} AND ({where})" if where else RESULTS
    runs = read(engine, f"SELECT * FROM runs WHERE {condition} ORDER BY id")
    numbers = dict.fromkeys(("final_accuracy", "final_loss", "final_gap", "wall_seconds"), float)
    tell_left_out(engine, ("runs", "recovery"))
    recovery = read(engine, "SELECT * FROM recovery").rename(columns={"run_id": "id"})
    recovery = recovery.astype({name: float for name in recovery if name not in ("id", "reason")})
    runs = with_specs(engine, runs).astype(numbers)
    return runs.merge(recovery, on="id", how="left", validate="one_to_one")


def in_order(runs: pd.DataFrame, planned: pd.DataFrame) -> pd.DataFrame:
    """The runs that a plan has, in its order."""
    places = {key: place for place, key in enumerate(planned["run_key"])}
    order = runs["run_key"].map(places).dropna().sort_values().index
    return runs.loc[order].reset_index(drop=True)


def missing(results: Results) -> tuple[pd.DataFrame, int]:
    """The planned cells without any run, a row each, and the number of all planned runs that are not there."""
    stored = results.planned["run_key"].isin(results.runs["run_key"])
    cells = results.planned.assign(stored=stored, cell=cells_of(results.planned))
    empty = cells.groupby("cell", sort=False)["stored"].transform("sum") == 0
    return cells[empty].drop_duplicates("cell").drop(columns=["stored", "cell"]), int((~stored).sum())


def cells_of(frame: pd.DataFrame) -> pd.Series[Any]:
    """A text for each run, equal for runs that differ in their seed only."""
    return frame["spec"].map(lambda spec: json.dumps({**spec, "seed": None}, sort_keys=True))


def telling_apart(runs: pd.DataFrame, columns: Iterable[str], given: Iterable[str]) -> list[str]:
    """Those of the columns by which runs differ that have the same in the columns ``given`` and in those before."""
    known, names = list(given), []
    for name in columns:
        if name not in known and _groups(runs, [*known, name]) > _groups(runs, known):
            known.append(name)
            names.append(name)
    return names


def _groups(runs: pd.DataFrame, columns: list[str]) -> int:
    return len(runs[columns].drop_duplicates()) if columns else 1
