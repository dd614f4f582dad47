"""Forecast of a plan from stored runs: runs to do, time and disk space."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynabro_cli.components.methods._api import MethodSetting, single_batch
from dynabro_cli.components.methods._levels import expected_cost
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.lazy import np
from dynabro_cli.core.registration import Component
from dynabro_cli.experiment.comparison import CodeComparison
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.experiment.spec import fields
from dynabro_cli.runs.executors.placement import DeviceKind
from dynabro_cli.runs.store.open.engine import open_read_only
from dynabro_cli.runs.store.open.files import sqlite_path
from dynabro_cli.runs.store.read.queries import query
from dynabro_cli.runs.store.write.standing import Standing

BYTES_A_ROW = 55
"""Bytes of a row of ``rounds`` or ``evaluations``, with their shares of all other data: 53 in a
database of 11 MNIST runs, 50 in one of 60 runs of the quadratic (SQLite 3.46, indexes included). A
database with ``ENOUGH_ROWS`` is measured itself.
"""
BYTES_A_RUN = 1500
"""Bytes of a row of ``runs``, indexes included, in the same databases."""
ENOUGH_ROWS = 10_000
DRAWS = 2000

SPEED_FIELDS = tuple(name for name, info in fields().items() if info.speed)
"""The fields that the time of a gradient computation depends on, beside the method."""
SPEEDS = f"""
    SELECT {", ".join(SPEED_FIELDS)}, method, device, SUM(budget_spent), SUM(wall_seconds)
    FROM runs
    WHERE status = 'finished' AND wall_seconds > 0
    GROUP BY {", ".join(SPEED_FIELDS)}, method, device
"""
ROWS = (
    "SELECT (SELECT COUNT(*) FROM evaluations) + (SELECT COALESCE(SUM(rounds / "
    "rounds_every), 0) FROM runs)"
)

Like = tuple[object, ...]


@dataclass(frozen=True)
class Forecast:
    """Forecast of a plan.

    Attributes:
        planned: Runs of the plan.
        stored: Runs with a result already.
        failed: Runs that failed before and are not repeated.
        to_do: All other runs.
        timed: Runs to do that are similar to a stored run.
        seconds: Time of the timed runs one after another, at the speed of the stored runs; None if
            there are none.
        bytes: Growth of the database.
        jobs: Number of runs at a time.
        elapsed: Time of the timed runs at this number: their shares, or the longest run if that is
            more.
        devices: Number of runs to do on each kind of device, ``cpu`` and ``cuda``.
        code: Comparison of the stored runs' code with the current code.
        goes_on: True if an interrupted rerun is continued.
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
    devices: Mapping[str, int] = field(default_factory=dict)
    code: CodeComparison = field(default_factory=CodeComparison)
    goes_on: bool = False


def forecast(
    runs: Sequence[Run],
    database: str,
    *,
    standing: Standing,
    retry_failed: bool = False,
    jobs: int = 1,
    place: Callable[[Run], DeviceKind] = lambda _: DeviceKind("cpu"),
) -> Forecast:
    """Compare ``runs`` with what ``database`` has, which need not exist.

    The speed of a run is the wall time that a gradient computation took in finished runs of the
    same task, model, workers, batch size, precision and participation on the same kind of device:
    runs of its method, or of any method if there are none. Numbers of threads and of simultaneous
    runs are not considered.

    Args:
        runs: The runs of the plan.
        database: The database of results.
        standing: State of the runs there.
        retry_failed: True if runs that are stored as failed are repeated.
        jobs: Number of runs at a time.
        place: Returns where a run is made.

    Raises:
        DynabroError: The file is not a dynabro database, or cannot be read.
    """
    speeds, bytes_a_row = _read(database)
    keys = [run.key for run in runs]
    states = [standing.end_of(key) for key in keys]
    settled = ("stored",) if retry_failed else ("stored", "failed")
    stored, failed = (
        states.count(state) if state in settled else 0 for state in ("stored", "failed")
    )
    to_do = [run for run, state in zip(runs, states, strict=True) if state not in settled]
    places = [place(run) for run in to_do]
    times: dict[DeviceKind, list[float]] = {}
    for run, where in zip(to_do, places, strict=True):
        if (time := _seconds(run, where.device, speeds)) is not None:
            times.setdefault(where, []).append(time)
    growth = round(sum(BYTES_A_RUN + bytes_a_row * _rows(run) for run in to_do))
    return Forecast(
        len(runs),
        stored,
        failed,
        len(to_do),
        sum(map(len, times.values())),
        sum(map(sum, times.values())) if times else None,
        growth,
        max(1, min(jobs, len(to_do))),
        _elapsed(times),
        dict(Counter(where.device for where in places)),
        standing.compare(keys),
        standing.goes_on,
    )


def _elapsed(times: Mapping[DeviceKind, Sequence[float]]) -> float | None:
    """Return the time of runs by their places: CPU and GPUs work at the same time, and a GPU makes
    one kind after another.
    """
    sums: dict[str, float] = {}
    for where, some in times.items():
        sums[where.device] = sums.get(where.device, 0.0) + max(sum(some) / where.jobs, *some)
    return max(sums.values(), default=None)


def _read(database: str) -> tuple[dict[Like, float], float]:
    """Return seconds per computation by kind of device and similarity; and bytes per row."""
    try:
        engine = open_read_only(database)
    except NotFoundError:
        return {}, BYTES_A_ROW
    sums: dict[Like, tuple[float, float]] = {}
    for *like, method, device, spent, seconds in query(engine, SPEEDS).rows:
        kind = device.partition(" ")[0].partition(":")[0]
        for key in ((kind, *like, method), (kind, *like)):
            before = sums.get(key, (0, 0))
            sums[key] = (before[0] + spent, before[1] + seconds)
    speeds = {key: seconds / spent for key, (spent, seconds) in sums.items() if spent}
    rows = next(query(engine, ROWS).rows)[0]
    path = sqlite_path(database)
    measured = path.stat().st_size / rows if path is not None and rows >= ENOUGH_ROWS else None
    return speeds, measured or BYTES_A_ROW


def _seconds(run: Run, device: str, speeds: dict[Like, float]) -> float | None:
    spec = run.spec
    like = (device, *(getattr(spec, name) for name in SPEED_FIELDS))
    speed = speeds.get((*like, spec.method), speeds.get(like))
    return None if speed is None else speed * spec.budget


def _rows(run: Run) -> float:
    """Return the expected rounds and evaluations of a run."""
    spec = run.spec
    return 1 + spec.budget / spec.eval_every + spec.budget / _cost(run.method, run.method_setting)


@functools.lru_cache(maxsize=1024)
def _cost(method: Component[Any], setting: MethodSetting) -> float:
    """Return the mean gradient computations of a round: exact if it is known, else of plans drawn
    as the method draws them.
    """
    built = method.build(setting)
    if built.jmax is not None:
        return expected_cost(built.jmax)
    draw = built.plan
    if draw is single_batch:
        return 1.0
    generator = np.random.default_rng(0)
    return float(np.mean([draw(generator).prefixes[-1] for _ in range(DRAWS)]))
