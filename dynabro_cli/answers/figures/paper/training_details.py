"""The table ``training-details``."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from dynabro_cli.answers.analysis.columns import TASKS, method_label
from dynabro_cli.answers.analysis.results import Results
from dynabro_cli.answers.figures._api import Drawn, figure
from dynabro_cli.answers.figures._tables import draw_table
from dynabro_cli.experiment.complete import parse_drops
from dynabro_cli.runs.store.read.queries import query, quoted
from dynabro_cli.runs.store.tables import HAS_RESULT

ROWS = {
    "architecture": "architecture",
    "dimension": "parameters, d",
    "budget": "iterations (budget)",
    "lr_drop": "learning rate drops",
    "rates": "learning rates",
    "jmax": "largest level of DynaBRO",
    "weight_decay": "weight decay",
    "batch_size": "base batch size, B",
    "workers": "workers, m",
    "precision": "precision",
    "device": "device",
    "wall_seconds": "time of DynaBRO's run",
}
"""Rows of the table, and their names."""
HEAD = "FC(10), softmax in the loss"
ARCHITECTURES = {
    "cnn-mnist": f"Conv(20)-ReLU-MaxPool-Conv(20)-ReLU-MaxPool-FC(500)-ReLU-{HEAD}",
    "cnn-cifar": "Conv(64)-ReLU-BatchNorm-Conv(64)-ReLU-BatchNorm-MaxPool-Dropout(0.25)-"
    f"Conv(128)-ReLU-BatchNorm-Conv(128)-ReLU-BatchNorm-MaxPool-Dropout(0.25)-FC(128)-ReLU-Dropout(0.25)-{HEAD}",
}
"""The layers of the paper's networks, in its notation."""
PAPERS = ("sgd", "momentum", "dynabro")


@figure("training-details", sweep="training-details", reference="DynaBRO (ICML 2024), Table 2")
def draw(results: Results) -> Drawn:
    """Training details of the experiments on images, as they are stored with the runs.

    A data set without a run has the settings of the plan; cells that need a run are empty. Learning
    rates are of all stored runs of the same sweep with the same network, attack and number of
    workers; without a run, of any sweep and of the plan.
    """
    stored = {run["run_key"]: run for run in results.runs.to_dict("records")}
    columns = {}
    for planned in results.planned.to_dict("records"):
        if planned["spec"]["method"]["name"] != "dynabro":  # only their learning rates are shown
            continue
        run = stored.get(planned["run_key"])
        name = TASKS.get(planned["task"], planned["task"])
        row = run or planned
        cells = {
            **row,
            "rates": _rates(results, row),
            "architecture": ARCHITECTURES.get(row["model"], row["model"]),
        }
        cells["jmax"] = row["spec"]["method"].get("jmax")
        cells["lr_drop"] = _drops(row)
        columns[name if run else f"{name} (planned, not run)"] = [
            _cell(field, cells.get(field)) for field in ROWS
        ]
    numbers = pd.DataFrame({"setting": list(ROWS.values()), **columns})
    shown = numbers.rename(columns={"setting": ""})
    return Drawn(draw_table(shown, "training details"), numbers, shown)


def _rates(results: Results, row: Mapping[Hashable, Any]) -> str:
    """Return the learning rates of the paper's methods, of the stored runs that are comparable with
    a row.
    """
    condition = f"{HAS_RESULT} AND workers = {row['workers']}" + "".join(
        f" AND {name} = {quoted(str(row[name]))}"
        for name in ("task", "model", "sweep")
        if row.get(name)
    )
    # whatever its parameters are: momentum's sign flips have one
    attack = row["spec"]["attack"]["name"]
    condition += f" AND (attack = {quoted(attack)} OR attack LIKE {quoted(f'{attack}:%')})"
    stored = query(
        results.engine,
        f"SELECT DISTINCT method, learning_rate FROM runs WHERE {condition} ORDER BY 1, 2",
    ).frame()
    rates: dict[str, set[float]] = {}
    for method, rate in stored.itertuples(index=False, name=None):
        if method.partition(":")[0] in PAPERS:
            rates.setdefault(method.partition(":")[0], set()).add(rate)
    for planned in results.planned[results.planned["task"] == row["task"]].to_dict("records"):
        rates.setdefault(planned["spec"]["method"]["name"], {planned["learning_rate"]})
    names = {"sgd": "SGD", "momentum": "momentum", "dynabro": method_label({"name": "dynabro"})}
    texts = {
        names[name]: " or ".join(f"{rate:g}" for rate in sorted(rates[name]))
        for name in PAPERS
        if name in rates
    }
    return ", ".join(f"{name} {values}" for name, values in texts.items())


def _drops(row: Mapping[Hashable, Any]) -> str:
    """Return the drops of the learning rate in words: the factor, and the iteration after which it
    applies.
    """
    drops = parse_drops(row["lr_drop"])
    return (
        ", ".join(
            f"x {factor:g} after {fraction * row['budget']:,.0f}" for fraction, factor in drops
        )
        or "none"
    )


def _cell(field: str, value: Any) -> str:
    if value is None:
        return ""
    if field == "wall_seconds":
        return f"{value / 60:.1f} min"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
