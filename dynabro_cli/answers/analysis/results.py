"""Data of figures: runs with a result, and their evaluations, histograms and rounds."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Engine

from dynabro_cli.answers.analysis.diverged import counted
from dynabro_cli.answers.analysis.metrics import METRIC_PREFIX
from dynabro_cli.core.errors import DatabaseError, SpecError
from dynabro_cli.core.registration import format_value
from dynabro_cli.experiment.effect import Adversary, adversaries, effective, what_differs
from dynabro_cli.experiment.spec import fields
from dynabro_cli.runs.store.open.translation import shown
from dynabro_cli.runs.store.read.queries import FETCH_ROWS, among, query, sweeps_condition
from dynabro_cli.runs.store.read.rows import spec_of
from dynabro_cli.runs.store.tables import HAS_RESULT
from dynabro_cli.runs.store.views import RULE

ComputeIdentities = Callable[[Mapping[str, Any], int], "np.ndarray[Any, Any]"]
MeasureWindow = Callable[[Mapping[str, Any]], tuple[int, bool, bool]]
LAST = "SELECT run_id, MAX(round) FROM metrics WHERE {} GROUP BY run_id"
"""The last evaluation of some runs with numbers of plugins, as SQL."""
ADVERSARY_INPUTS = ("method", "attack", "attack_entry", "clock", "workers", "budget")
"""Columns that say which adversary a run met."""
WORKERS = re.compile(r"\[([1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*)?\]")
"""Numbers of workers, as the recorder writes them."""
NUMBERS = ("test_accuracy", "test_loss", "train_loss", "gap")


@dataclass(frozen=True)
class Results:
    """The runs of a figure.

    Attributes:
        runs: One row per run that finished or diverged: the columns of the table ``runs``, with
            ``spec`` as a mapping, ``rule``, and the columns of ``recovery`` if the database has
            them.
        planned: One row per planned run of the figure's sweep: ``run_key`` and the columns of the
            spec, in the plan's order; without a sweep, the same as ``runs``.
        label: Differences from the sweep that comes with the program.
        engine: The database.
        identities: ``identities(run, ticks)`` computes again which workers were Byzantine in a run,
            given its columns, at its first ticks: bool, [ticks, m].
        window: ``window(run)`` measures how many rounds one gradient influences in a run, given its
            columns. It also returns if the measurement saw the end, and if the method filters
            workers by their history.
        sweeps: The sweeps that were asked for, if any; a run that several of them have is a row for
            each.
    """

    runs: pd.DataFrame
    planned: pd.DataFrame
    label: str
    engine: Engine
    identities: ComputeIdentities
    window: MeasureWindow
    sweeps: tuple[str, ...] = ()

    @functools.cached_property
    def evaluations(self) -> pd.DataFrame:
        """Return the evaluations of the runs, in order; columns of the table."""
        table = self._rows("evaluations", "run_id, round").astype(dict.fromkeys(NUMBERS, float))
        metrics = self._rows("metrics", "run_id, round")
        return (
            table
            if metrics.empty
            else table.merge(
                _wide(metrics, ["run_id", "round"]), on=["run_id", "round"], how="left"
            )
        )

    def along(self, value: str) -> pd.DataFrame:
        """Return ``run_id``, ``budget`` and a number of the evaluations of the runs, in order; less
        memory than all columns.
        """
        names = ["run_id", "budget", value]
        if value not in NUMBERS:
            return self.evaluations[names]
        return self._rows("evaluations", "run_id, round", names).astype({value: float})

    @functools.cached_property
    def histograms(self) -> pd.DataFrame:
        """Return ``run_id``, ``byzantine`` and ``rounds``: the number of rounds of a run by number
        of Byzantine workers.
        """
        return self._rows("byzantine_histogram", "run_id, byzantine")

    def named(self, name: Callable[[pd.DataFrame], pd.DataFrame]) -> Results:
        """Return the results with columns that ``name`` adds to the runs and to the plan."""
        return replace(self, runs=name(self.runs), planned=name(self.planned))

    def changes(self, run_id: int) -> pd.DataFrame:
        """Return the stored changes of a run's Byzantine set: ``tick``, and ``byzantine``, the
        workers from 1 on.
        """
        identities = query(
            self.engine,
            f"SELECT tick, byzantine FROM identities WHERE run_id = {int(run_id)} ORDER BY tick",
        ).frame()
        if not identities["byzantine"].map(lambda text: WORKERS.fullmatch(text) is not None).all():
            raise DatabaseError(
                f"run {run_id}: a row of identities has no list of workers. Try: dynabro db check"
            )
        return identities.assign(byzantine=identities["byzantine"].map(json.loads))

    def rounds(self, run_id: int) -> pd.DataFrame:
        """Return the rounds of a run, in order; columns of the table."""
        return query(
            self.engine, f"SELECT * FROM rounds WHERE run_id = {int(run_id)} ORDER BY round"
        ).frame()

    def _rows(self, table: str, order: str, names: Sequence[str] = ("*",)) -> pd.DataFrame:
        which = f"run_id IN ({', '.join(str(run_id) for run_id in self.runs['id']) or 'NULL'})"
        sql = f"SELECT {', '.join(names)} FROM {table} WHERE {which} ORDER BY {order}"
        return query(self.engine, sql).frame()


def read_runs(engine: Engine, where: str | None, sweeps: Sequence[str] = ()) -> pd.DataFrame:
    """Return the runs with a result that satisfy an SQL condition, in the form of ``Results.runs``.

    Runs that diverged have the numbers that they count as.

    Args:
        engine: The database, open for reading.
        where: The condition; None for all runs.
        sweeps: Only runs of these sweeps, which the column ``sweep`` then names: one row for each
            sweep that has the run.

    Raises:
        NotFoundError: No run of a sweep is stored.
        SpecError: The condition is not valid.
    """
    condition = sweeps_condition(engine, where, sweeps) or "TRUE"
    runs = query(
        engine, f"SELECT *, {RULE} FROM runs WHERE {HAS_RESULT} AND ({condition}) ORDER BY id"
    ).frame()
    # a column that is NULL in all rows would have objects instead of numbers
    numbers = dict.fromkeys(("final_accuracy", "final_loss", "final_gap", "wall_seconds"), float)
    chosen = f"run_id IN (SELECT id FROM runs WHERE {condition})"
    recovery = query(engine, f"SELECT * FROM recovery WHERE {chosen}").frame()
    recovery = recovery.rename(columns={"run_id": "id"})
    recovery = recovery.astype({name: float for name in recovery if name not in ("id", "reason")})
    runs = with_specs(engine, runs).astype(numbers)
    runs = runs.merge(recovery, on="id", how="left", validate="one_to_one")
    metrics = query(
        engine, f"SELECT * FROM metrics WHERE (run_id, round) IN ({LAST.format(chosen)})"
    ).frame()
    if not metrics.empty:
        runs = runs.merge(
            _wide(metrics, ["run_id"]).rename(columns={"run_id": "id"}), on="id", how="left"
        )
    runs = counted(runs)
    if not sweeps:
        return runs
    listed = query(
        engine,
        "SELECT DISTINCT run_key, name FROM sweep_runs JOIN sweeps ON id = sweep_id WHERE "
        f"{among('name', sweeps)}",
    ).frame()
    made_by = runs[["run_key", "sweep"]].rename(columns={"sweep": "name"})
    members = pd.concat([listed, made_by[made_by["name"].isin(sweeps)]]).drop_duplicates()
    order = members.assign(place=members["name"].map(list(sweeps).index)).sort_values(
        "place", kind="stable"
    )
    merged = order.drop(columns="place").merge(runs.drop(columns="sweep"), on="run_key")
    return merged.rename(columns={"name": "sweep"}).sort_values(
        "id", kind="stable", ignore_index=True
    )[list(runs.columns)]


def with_specs(engine: Engine, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with ``spec`` as a mapping.

    Raises:
        DatabaseError: The values of a run's row do not agree.
    """
    specs: list[dict[str, Any] | None] = []
    values: dict[str, Any] = {}
    for start in range(0, len(runs), FETCH_ROWS):
        rows = runs.iloc[start : start + FETCH_ROWS].astype(object)
        for run in rows.where(rows.notna(), None).to_dict("records"):
            spec = spec_of(run)
            # equal values are one object: thousands of specs take much memory
            specs.append(
                spec
                and {
                    sys.intern(name): values.setdefault(repr(value), value)
                    for name, value in spec.items()
                }
            )
    if None in specs:
        name, run_id = shown(engine.url), runs["id"].iloc[specs.index(None)]
        raise DatabaseError(
            f"{name}: values of the row of run {run_id} do not agree. Try: dynabro db check "
            f"--db {name}"
        )
    return runs.assign(spec=specs).reset_index(drop=True)


def _wide(metrics: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return rows of the table ``metrics`` with a column for each name."""
    wide = metrics.astype({"value": float}).pivot_table(
        index=keys, columns="name", values="value", dropna=False
    )
    return wide.add_prefix(METRIC_PREFIX).reset_index()


def rows_with(frame: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows with these values of columns."""
    for name, value in values.items():
        frame = frame[frame[name] == value]
    return frame


def runs_of_plan(runs: pd.DataFrame, planned: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of a plan, in its order."""
    places = {key: place for place, key in enumerate(planned["run_key"])}
    order = runs["run_key"].map(places).dropna().sort_values().index
    return runs.loc[order].reset_index(drop=True)


def plan_as_stored(planned: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a plan in which a run that is not stored is replaced by one that is, and differs only
    in fields without effect.
    """
    if planned["run_key"].isin(runs["run_key"]).all():
        return planned
    stored = dict(zip(_texts(runs, {}), runs[list(planned)].to_dict("records"), strict=True))
    keys = set(runs["run_key"])
    rows = zip(planned.to_dict("records"), _texts(planned, {}), strict=True)
    return pd.DataFrame(
        [row if row["run_key"] in keys else stored.get(text, row) for row, text in rows]
    ).astype(planned.dtypes)


def missing(results: Results) -> tuple[pd.DataFrame, int]:
    """Return the planned cells without any run, one row each, and the number of missing planned
    runs.
    """
    stored = results.planned["run_key"].isin(results.runs["run_key"])
    cells = results.planned.assign(stored=stored, cell=cells_of(results.planned))
    empty = cells.groupby("cell", sort=False)["stored"].transform("sum") == 0
    return cells[empty].drop_duplicates("cell").drop(columns=["stored", "cell"]), int(
        (~stored).sum()
    )


def adversaries_of(frame: pd.DataFrame) -> list[Adversary]:
    """Return the adversary that each run met."""
    return list(adversaries(frame[list(ADVERSARY_INPUTS)].to_dict("records")))


def normal_forms(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the normal form of each run's spec."""
    return [
        effective(spec, adversary)
        for spec, adversary in zip(frame["spec"], adversaries_of(frame), strict=True)
    ]


def cells_of(frame: pd.DataFrame) -> pd.Series[Any]:
    """Return a text for each run, equal for runs that differ in their seed only, or in fields
    without effect.
    """
    return _texts(frame, {"seed": None})


def _texts(frame: pd.DataFrame, ignored: Mapping[str, None]) -> pd.Series[Any]:
    texts = [json.dumps({**spec, **ignored}, sort_keys=True) for spec in normal_forms(frame)]
    return pd.Series(texts, index=frame.index, dtype=object)


def check_means(runs: pd.DataFrame, by: Sequence[str], *, along: bool = False) -> None:
    """Raise SpecError if the runs of a cell differ in more than their seed: a mean over them has no
    meaning.

    Args:
        runs: The runs, in the form of ``Results.runs``.
        by: Columns whose values distinguish the cells.
        along: True for means along the runs, which also depend on the places of the evaluations.
    """
    ignored = dict.fromkeys(("seed",) if along else ("seed", "eval_every"))
    texts = _texts(runs, ignored)
    keys = [runs[name] for name in by] or [pd.Series(0, index=runs.index)]
    mixed = texts.groupby(keys, sort=False, dropna=False).transform("nunique") > 1
    if not mixed.any():
        return
    cell = runs[mixed].groupby([key[mixed] for key in keys], sort=False, dropna=False).ngroup() == 0
    cell_runs = runs[mixed][cell]
    first = cell_runs.iloc[0]
    other = cell_runs[texts[cell_runs.index] != texts[cell_runs.index[0]]].iloc[0]
    forms = [{**form, **ignored} for form in normal_forms(pd.DataFrame([first, other]))]
    name, a, b = what_differs(forms) or ("", None, None)
    column = name.partition(".")[0]
    value = fields()[column].type(first[column])
    quoted = f"'{value}'" if isinstance(value, str) else format_value(value)
    raise SpecError(
        f"{name}={format_value(a)}: a mean over runs {first['id']} and {other['id']} would mix "
        "it with "
        f'{name}={format_value(b)}. Try: --where "{column} = {quoted}"'
    )
