"""Time that Optuna needs per trial: proposals with few and many stored trials, by the model (TPE)
and at random.
"""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measuring import machine, table
from dynabro_cli.experiment.grid.search_file import load_search, set_values
from dynabro_cli.runs.search.study import Study
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.read.searches import Trial, trials_of
from dynabro_cli.runs.store.write import trials
from dynabro_cli.runs.store.write.transactions import KeptConnection

AROUND = 20
"""Number of trials over which a cost is averaged."""


def measure(search: str, most: int, repeats: int) -> str:
    """Make trials of a search whose values are a formula, with rows in a database; return the
    processor time without them.

    Args:
        search: The name of a search.
        most: Number of trials.
        repeats: The number of measurements of each sampler, in turn.
    """
    samplers = ("random", "tpe")
    found = {
        sampler: [_measured(search, sampler, most) for _ in range(repeats)] for sampler in samplers
    }
    rows = []
    words = (
        f"ms a trial, the first {AROUND}",
        f"ms a trial, the last {AROUND} of {most}",
        "s to rebuild the study",
    )
    for place, what in enumerate(words):
        values = [statistics.median(one[place] for one in found[sampler]) for sampler in samplers]
        rows.append([what, *(f"{value:.3g}" for value in values), f"{values[1] / values[0]:.2f}"])
    return f"{machine()}\n{table(['', *samplers, 'tpe / random'], rows)}"


def _measured(name: str, sampler: str, most: int) -> tuple[float, float, float]:
    """Return processor time: ms per trial at the beginning and at the end, and seconds to rebuild
    the study of all trials.
    """
    search = set_values(load_search(name), [f"sampler={sampler}", f"trials={most}"])
    (label, fixed), *_ = search.points()
    with TemporaryDirectory() as folder:
        engine = open_for_writing(str(Path(folder) / "results.db"))
        connection, study, times = KeptConnection(engine), Study(search, label, fixed), []
        for number in range(most):
            began = time.process_time()
            with connection.begin() as database:
                rows = trials_of(database, label, number)
            study.absorb(rows, {})
            parameters, runs = study.propose(number)
            with connection.begin() as database:
                trials.begin(database, label, number, None, parameters, [run.key for run in runs])
                value = _value(parameters)
                trials.end(database, label, number, "finished", value)
            study.tell(number, "finished", value)
            times.append(time.process_time() - began)
        began = time.process_time()
        with connection.begin() as database:
            rows: list[Trial] = trials_of(database, label)
        Study(search, label, fixed).absorb(rows, {})
        rebuilt = time.process_time() - began
        connection.close()
        engine.dispose()
    return 1e3 * statistics.fmean(times[:AROUND]), 1e3 * statistics.fmean(times[-AROUND:]), rebuilt


def _value(parameters: dict[str, object]) -> float:
    """Return a value with an optimum, for a model to find."""
    return sum(
        abs(math.log(number) - 1)
        for number in parameters.values()
        if isinstance(number, int | float)
    )
