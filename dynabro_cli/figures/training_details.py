"""The table ``training-details``."""

from __future__ import annotations

from typing import Any

import pandas as pd

from dynabro_cli.figures._api import Drawn, figure
from dynabro_cli.figures._data import Results
from dynabro_cli.figures._panels import TASKS
from dynabro_cli.figures._tables import draw_table

ROWS = {
    "model": "network",
    "dimension": "parameters, d",
    "budget": "iterations (budget)",
    "lr_drop": "learning rate drops, at : by",
    "weight_decay": "weight decay",
    "batch_size": "base batch size, B",
    "workers": "workers, m",
    "learning_rate": "learning rate of DynaBRO",
    "precision": "precision",
    "device": "device",
    "wall_seconds": "time of a run",
}
"""Columns of ``runs``, and their names in the table."""


@figure("training-details", sweep="training-details", reference="DynaBRO (ICML 2024), Table 2")
def draw(results: Results) -> Drawn:
    """Training details of the experiments on images, as they are stored with the runs.

    A data set without a run has the settings of the plan; cells that need a run are empty.
    """
    stored = {run["run_key"]: run for run in results.runs.to_dict("records")}
    columns = {}
    for planned in results.planned.to_dict("records"):
        run = stored.get(planned["run_key"])
        name = TASKS.get(planned["task"], planned["task"])
        columns[name if run else f"{name} (planned, not run)"] = [_cell(field, (run or planned).get(field)) for field in ROWS]
    numbers = pd.DataFrame({"setting": list(ROWS.values()), **columns})
    return Drawn(draw_table(numbers.rename(columns={"setting": ""}), "training details"), numbers)


def _cell(field: str, value: Any) -> str:
    if value is None:
        return ""
    if field == "wall_seconds":
        return f"{value / 60:.1f} min"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
