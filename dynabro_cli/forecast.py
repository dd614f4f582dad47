"""What a plan will cost, told from the runs that are stored already: what is left to do, for how long, in how much room."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dynabro_cli.components import Component
from dynabro_cli.errors import NotFoundError
from dynabro_cli.methods._api import MethodSetting
from dynabro_cli.resolve import Run
from dynabro_cli.simulation.setup import pick_device
from dynabro_cli.store.engine import open_read_only, sqlite_path
from dynabro_cli.store.queries import query

BYTES_A_ROW = 55
"""Of ``rounds`` and ``evaluations``, all else shared out among them: 53 in a database of 11 MNIST runs, 50 in one of 60 runs of
the quadratic (SQLite 3.46, its indexes included). A database with ``ENOUGH_ROWS`` of its own is asked itself.
"""
BYTES_A_RUN = 1500
"""Of ``runs``, indexes included, in the same databases."""
ENOUGH_ROWS = 10_000
DRAWS = 2000

STATES = "SELECT run_key, status FROM runs"
SPEEDS = """
    SELECT task, model, workers, batch_size, precision, participation, method, device, SUM(budget_spent), SUM(wall_seconds)
    FROM runs
    WHERE status = 'finished' AND wall_seconds > 0
    GROUP BY task, model, workers, batch_size, precision, participation, method, device
"""
ROWS = "SELECT (SELECT COUNT(*) FROM evaluations) + (SELECT COALESCE(SUM(rounds / rounds_every), 0) FROM runs)"

Like = tuple[object, ...]


@dataclass(frozen=True)
class Forecast:
    """What is ahead.

    Attributes:
        planned: Runs of the plan.
        stored: Those with a result already.
        failed: Those that failed before and are left as they are.
        to_do: The others.
        timed: Those to do with which a stored run can be compared.
        seconds: What the timed ones take one after another, at the speed of the stored; None where there are none.
        bytes: By how much the database grows.
        jobs: How many runs there will be at a time.
        elapsed: What the timed ones take so many at a time: their shares, or the longest of them where that is more.
    """

    planned: int
    stored: int
    failed: int
    to_do: int
    timed: int
    seconds: float | None
    bytes: int
    jobs: int = 1
    elapsed: float | None = None


def forecast(
    runs: Sequence[Run], database: str, *, device: str = "auto", retry_failed: bool = False, jobs: int = 1
) -> Forecast:
    """Compare ``runs`` with what ``database`` has, which need not exist.

    The speed of a run is the wall time that a gradient computation took in finished runs of the same task, model, workers,
    batch size, precision and participation on the same kind of device: those of its method, or of any method where there are
    none. Whether they had more threads, or more runs beside them, is not considered.

    Args:
        runs: The runs of the plan.
        database: Where results are.
        device: Where to compute.
        retry_failed: Whether runs that are stored as failed are run again.
        jobs: How many runs at a time.

    Raises:
        SpecError: The device is not there.
        DynabroError: The database is something else, or cannot be read.
    """
    kind = pick_device(device).type
    states, speeds, bytes_a_row = _read(database, kind)
    found = [states.get(run.key) for run in runs]
    stored = sum(state in ("finished", "diverged") for state in found)
    failed = 0 if retry_failed else found.count("failed")
    waiting = ("finished", "diverged") if retry_failed else ("finished", "diverged", "failed")
    to_do = [run for run, state in zip(runs, found, strict=True) if state not in waiting]
    times = [time for run in to_do if (time := _seconds(run, speeds)) is not None]
    growth = round(sum(BYTES_A_RUN + bytes_a_row * _rows(run) for run in to_do))
    jobs = max(1, min(jobs, len(to_do)))
    seconds, elapsed = (sum(times), max(sum(times) / jobs, *times)) if times else (None, None)
    return Forecast(len(runs), stored, failed, len(to_do), len(times), seconds, growth, jobs, elapsed)


def usual_jobs(device: str, cores: int, jobs_per_gpu: int) -> int:
    """How many runs at a time where nobody says: as many as ``cores``, or ``jobs_per_gpu`` on each GPU that ``device`` names.

    Raises:
        SpecError: The device is not there.
    """
    if pick_device(device).type == "cpu":
        return cores
    return jobs_per_gpu * (torch.cuda.device_count() if device in ("auto", "cuda") else 1)


def run_seconds(runs: Sequence[Run], database: str, *, device: str = "auto") -> dict[str, float]:
    """What each of ``runs`` takes at the speed of stored runs, by key; one that is like none of them is left out.

    Raises:
        SpecError: The device is not there.
        DynabroError: The database is something else, or cannot be read.
    """
    _, speeds, _ = _read(database, pick_device(device).type)
    return {run.key: time for run in runs if (time := _seconds(run, speeds)) is not None}


def _read(database: str, kind: str) -> tuple[dict[str, str], dict[Like, float], float]:
    """Status by key; seconds a computation by likeness, on devices of ``kind``; bytes a row."""
    try:
        engine = open_read_only(database)
    except NotFoundError:
        return {}, {}, BYTES_A_ROW
    states = {row[0]: row[1] for row in query(engine, STATES).rows}
    sums: dict[Like, tuple[float, float]] = {}
    for *like, method, device, spent, seconds in query(engine, SPEEDS).rows:
        if device.split()[0].partition(":")[0] == kind:
            for key in ((*like, method), tuple(like)):
                before = sums.get(key, (0, 0))
                sums[key] = (before[0] + spent, before[1] + seconds)
    speeds = {key: seconds / spent for key, (spent, seconds) in sums.items() if spent}
    rows = next(query(engine, ROWS).rows)[0]
    path = sqlite_path(database)
    measured = path.stat().st_size / rows if path is not None and rows >= ENOUGH_ROWS else None
    return states, speeds, measured or BYTES_A_ROW


def _seconds(run: Run, speeds: dict[Like, float]) -> float | None:
    spec = run.spec
    like = (spec.task, spec.model, spec.workers, spec.batch_size, spec.precision, spec.participation)
    speed = speeds.get((*like, spec.method), speeds.get(like))
    return None if speed is None else speed * (spec.budget or 0)


def _rows(run: Run) -> float:
    """Rounds and evaluations that a run is expected to have."""
    spec = run.spec
    budget = spec.budget or 0
    evaluations = 1 + budget / (spec.eval_every or budget)
    return evaluations + budget / _cost(run.method, run.method_setting)


@functools.lru_cache(maxsize=1024)
def _cost(method: Component[Any], setting: MethodSetting) -> float:
    """Gradient computations of a round on average, from plans drawn as the method draws them."""
    draw = method.build(setting).plan
    generator = np.random.default_rng(0)
    return float(np.mean([draw(generator).prefixes[-1] for _ in range(DRAWS)]))
